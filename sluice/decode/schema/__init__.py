"""Formats whose messages are described by a schema beside them: Avro and Protobuf."""
