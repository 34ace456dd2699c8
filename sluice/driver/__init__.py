"""The driver: takes partitions over, records what is loaded next, and sends it to workers."""
