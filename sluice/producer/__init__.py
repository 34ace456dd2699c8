"""Writing messages that Sluice reads: eBay's envelope, `SQLBatchRequest`.

    from sluice.producer import SQLBatchRequest

    request = SQLBatchRequest(
        table="orders",
        sql="INSERT INTO orders (id, name, tags) VALUES (?, ?, ?)",
        rows=[(1, "ann", ["new"]), (2, None, [])],
    )
    producer.produce("orders", request.encode())

Pure Python, no dependency: the bytes are those of the official Protocol Buffers runtimes.
"""

from sluice.producer.envelope import Bound, SQLBatchRequest, Value
from sluice.producer.wire import Kind, schema_hashcode

__all__ = ["Bound", "Kind", "SQLBatchRequest", "Value", "schema_hashcode"]
