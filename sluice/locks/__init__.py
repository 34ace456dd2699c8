"""Taking turns at a table whose server refuses an insert while another waits for its quorum."""
