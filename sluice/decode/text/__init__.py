"""Formats whose values are text, read by the type of the column: JSON, CSV, TSV."""
