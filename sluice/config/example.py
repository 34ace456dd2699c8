"""The commented configuration file that `sluice init` writes. It loads as it is."""

from __future__ import annotations

EXAMPLE = """\
# Sluice: Kafka topics into ClickHouse, every row exactly once.
# Check it with:  sluice doctor sluice.toml
# Run it with:    sluice run sluice.toml
# ${NAME} in a string is replaced from the environment; "$${" stands for "${".

[pipeline]
name = "orders"                       # part of every token and topic name: keep it

[spark]
# Two Python workers on this machine; each loads about 0.4 million rows a second and takes up to
# 0.6 GB. "local[*]": one for each core. Clusters: docs/DEPLOYMENT.md.
master = "local[2]"
# Any property of Spark, except speculation.
conf = { "spark.driver.memory" = "512m" }

[[connector]]                         # one Kafka cluster; repeat the section for more
name = "dc1"
brokers = "localhost:9092"            # host:port, several separated by commas
topics = ["orders"]
# topic_pattern = "orders\\\\..*"       # also, or instead: topics whose whole name matches, those
                                      # of later too; a [[table]] must take them as well
start = "earliest"                    # or "latest", or "2026-01-31T00:00:00Z", or
                                      # "group:NAME": where another loader's group stands
                                      # (stop it first); only for a topic that is new here
# Any librdkafka property, for every client of this connector. Passwords and keys are masked.
kafka = { "security.protocol" = "PLAINTEXT" }
# commit = "bundle"                   # its tables are all staged, and their rows come into sight
                                      # when all of them have their blocks; default: "table"
# reader = "auto"                     # what reads the ranges: "native", or "librdkafka" where
                                      # the brokers want a security that "native" does not know,
                                      # or client.rack lets it read from the nearest replica

[batch]                               # a range is loaded when it is full or has waited
max_messages = 250_000                # for one block of a table
max_bytes = "64MiB"                   # likewise; 1.5 times that is refused and shortened
# max_partitions = 1000               # small ranges of so many partitions are one block together;
                                      # 1: a block for each
max_delay = "1s"                      # how long the oldest message waits for company
lease = "10m"                         # how late a task may still insert

[clickhouse]
database = "shop"
shards = { s1 = ["http://localhost:8123"] }   # shards by name: partition p of Kafka
                                      # starts at replica p mod R; where that one fails, the
                                      # same block goes to the next (Replicated tables)
# Or, with the replicas asked of system.clusters, and only the names of the shards (macro {shard}):
# cluster = { name = "prod", servers = ["http://ch1:8123"] }   # the first that answers is asked
# shards = ["s1", "s2"]
# data_centers = { east = ["*.east.example.com"], west = ["*.west.example.com"] }
# prefer = "east"                     # its replicas come first; a [[connector]] may have its own
# max_replica_delay = "5m"            # a replica that is further behind is tried last, as is one
# max_replica_queue = 1000            # with a longer replication queue
user = "default"
# password = "${CLICKHOUSE_PASSWORD}"
                                      # instead { file = "clickhouse-password" }: its first line;
                                      # { command = ["pass", "show", "clickhouse"] }: what that
                                      # prints. Either is asked again when a server refuses it.
                                      # So every password, token and property of Kafka
# token = { file = "clickhouse-token" }   # instead of user and password: a JWT, as of Cloud
# tls = { ca = "ca.pem", certificate = "client.pem", key = "client.key" }   # of https URLs, each
                                      # where it is needed; also key_password
max_inflight_inserts = 32             # at once into one table on one replica, at most
# insert_timeout = "30s"              # what a block may take; then it is in doubt, and sent again
                                      # with more time. Longer spares a slow view that
durability = "single"                 # one replica's word is enough. With two or more
                                      # replicas use "quorum", which is the default.
# quorum = 2                          # with "quorum": how many replicas of a shard have to have
                                      # a block; "auto": most of those that it names
# quorum_timeout = "25s"              # how long the server waits for them
# zookeeper = "localhost:2181"        # servers before 20.10 take one quorum insert at a time
                                      # into a table: here loaders queue for its lock

[[table]]                             # an entry; repeat the section for more
name = "orders"                       # unique, part of every token: keep it; with {topic} or
                                      # {table} in it there is an entry for each of topics
target = "orders"                     # or database.table; default: name
topics = ["orders"]
format = "JSONEachRow"
lineage = true                        # the table has the columns _topic String,
                                      # _partition UInt32, _offset UInt64, _row UInt32, and
                                      # _source LowCardinality(String), which may be missing;
                                      # or false, or "auto": those that exist
unknown_fields = "ignore"             # or "refuse"
# dynamic_columns = { allow = ["attr_.*"], deny = ["attr_tmp.*"], max = 50 }
                                      # with "refuse": new fields get columns, or are passed over
on_null = "dead-letter"               # null for a non-nullable column; or "default"
fractions = "dead-letter"             # digits of a second that a column does not keep; or "cut"
# key = { format = "JSONEachRow" }    # of Kafka's keys: columns = { id = { key = "id" } }
# timestamps = "ms"                   # whole numbers in dates and times; default: seconds
# envelope = "debezium"               # the row is inside of a change event; or "connect"
# decompress = "zstd"                 # values that producers compressed: "gzip", "lz4", "snappy"
sort = false                          # true: workers sort blocks by the sorting key, which
                                      # moves work from the server to them
# shards = ["s1"]                     # some of the shards; default: all of them. With several:
# sharding = { by = "key", column = "user_id" }   # or by "offset", or by "expression"
# deduplicate = { key = ["source", "id"], window = "7d" }   # an event whose key came before, within
                                      # the window, makes no row: docs/EVENTS.md. Also scope = "…",
                                      # among whose keys it is looked for (default:
                                      # pipeline/database.table), duplicates = "drop" or
                                      # "dead-letter", and for messages without a part of the key
                                      # on_null = "dead-letter" or "row"
# delivery = "staged"                 # each block has a table of its own first, and is moved in,
                                      # for tables without a deduplication window; or
                                      # "replacing": the table keeps one of equal rows;
                                      # default: "block". docs/DELIVERIES.md
# tombstones = "delete"               # with "replacing": a message without a value deletes its key
on_error = "stop-partition"           # what ClickHouse refuses for good stops its partition;
                                      # "park": only this table's messages wait, in a topic

[dead_letters]
topic = "sluice.orders.dead-letters"  # default: sluice.<pipeline>.dead-letters
max_ratio = 0.5                       # a larger share of bad messages stops a partition; 1.0: none
min_dead_letters = 100                # fewer dead letters than these never do
# mask = ["email"]                    # of these columns and fields, reasons show no value

[parking]
topic = "sluice.orders.parking"       # default: sluice.<pipeline>.parking

[ledger]
topic = "sluice.orders.ledger"        # default: sluice.<pipeline>.ledger

[decisions]                           # of `sluice freeze` and `sluice resume`
topic = "sluice.orders.decisions"     # default: sluice.<pipeline>.decisions

# [fleet]                             # the driver reports, and knows who else does: docs/FLEET.md
# member = "east-1"                   # its name, which it keeps; default: data_center.host
# data_center = "east"                # where it runs; see prefer
# members_max = 8                     # windows are shared by so many; the same for all members
# silent_after = "8s"                 # who does not report for so long counts as silent

# [deduplication]                     # where the keys of events are kept; for deduplicate
# store = "local"                     # a directory of this machine: the default with master
                                      # local[…]. Others: "redis://host:6379/0", "rediss://…",
                                      # "redis-sentinel://one:26379,two:26379/name",
                                      # "redis-cluster://one:6379,two:6379"
# path = "sluice-claims"              # that directory; this one, beside this file, is the default
# password = { file = "redis-password" }   # of a Redis; or "${REDIS_PASSWORD}"
# ca_file = "ca.pem"                  # for rediss: what its certificate is checked against
# topic = "sluice.orders.duplicates"  # for duplicates = "topic"; sluice.<pipeline>.duplicates

# [verify]                            # beside a driver: what is recorded is judged
# every = "1m"                        # docs/OPERATIONS.md, "Continuous proof"
# source = "ledger"                   # or "offsets": Kafka's own __consumer_offsets

# [audit]                             # beside a driver: rows are compared with messages
# every = "10m"
# share = 0.1                         # of the time it works, and rests otherwise

# [http]                              # off without it: metrics, health, status, a page for people
# listen = "127.0.0.1:9464"
# hosts = ["sluice.example.com"]      # names by which it may be asked; default: any, on a loopback
                                      # address only its own
# partition_metrics = false           # no metric for each partition, where there are thousands
# tokens_file = "sluice-tokens"       # who may decide there: lines "NAME TOKEN"
# tls = { certificate = "driver.pem", key = "driver.key" }  # https alone; with ca, too,
                                      # only who shows a certificate that one of these has signed
"""
