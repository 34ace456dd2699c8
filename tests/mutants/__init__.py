"""A mutation run: breaks one line of the protocol's code at a time, and says what notices it."""
