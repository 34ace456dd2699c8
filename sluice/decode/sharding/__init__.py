"""Which shard each row of a block goes to."""
