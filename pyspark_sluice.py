"""Spark looks for modules of this kind of name, and takes their DefaultSource for a data source:
`df.writeStream.format("sluice")` needs no registration where sluice is installed."""

from sluice.stream.source import SluiceSink as DefaultSource

__all__ = ["DefaultSource"]
