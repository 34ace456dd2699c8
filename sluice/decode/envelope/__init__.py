"""eBay's envelope: rows bound to a statement, as relations."""
