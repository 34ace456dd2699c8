"""Columns that are not simply the fields of their names, and rows that are checked."""
