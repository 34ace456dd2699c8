"""Messages to rows: one Native block for each (range, table, shard), decoded by chdb.

The engine is loaded by the first `session()` of a thread, never by importing this
package: the driver plans ranges and does not pay for it.
"""
