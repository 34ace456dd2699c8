"""ClickHouse's engine as a library (chdb) behind ClickHouse's HTTP protocol, on loopback.

For demo, bench and development: one process for each data folder, any user and password.
"""
