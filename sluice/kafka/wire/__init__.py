"""An optional reader that parses Kafka's record batches into contiguous buffers.

It costs a fraction of the processor time of librdkafka's message objects. It only reads
ranges: everything that writes, commits or leads stays with librdkafka.
"""
