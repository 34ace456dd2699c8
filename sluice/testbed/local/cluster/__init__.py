"""A ClickHouse cluster on this machine: shards, replicas and ZooKeeper, each a process.

The servers are those that are installed; Debian's packages are what tests run.
"""
