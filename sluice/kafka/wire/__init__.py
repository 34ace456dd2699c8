"""The reader of ranges that is used unless brokers want a security that it does not know, or
`client.rack` is given: it parses Kafka's record batches into contiguous buffers.

It costs a fraction of the processor time of librdkafka's message objects. It asks for the ends of
logs and the ids of topics, too, and `doctor` asks by its connections what brokers speak and what
their user may write. Everything that writes, commits or leads stays with librdkafka.
"""
