"""What Sluice believes of a ClickHouse server, found out on the server itself."""
