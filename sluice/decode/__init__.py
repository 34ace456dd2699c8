"""Messages to rows: one Native block for each (range, table, shard), decoded by chdb.

The engine is loaded by the first `session()` of a thread, never by importing this
package: the driver plans ranges and does not pay for it.
"""

#: Raised by whoever changes which rows messages become, or which of them are bad: a range that was
#: in doubt under other rules is looked for in its tables, and never repeated under these.
RULES = 18
