"""Which rows are the same event: their deduplication keys; a block without some of its rows."""
