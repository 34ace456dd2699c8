"""The insert lock of a table whose server refuses an insert while another waits for its quorum."""
