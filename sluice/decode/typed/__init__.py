"""Relations whose values have types of their own, turned into the types of a table."""
