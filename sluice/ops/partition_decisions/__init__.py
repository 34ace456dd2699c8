"""The decisions about partitions that only a person takes. Each plans first; `apply` carries a plan
out.

* resolve: what became of a range in doubt, where neither a replay nor a probe can tell.
* adopt: go on from an offset, after a foreign commit, lost offsets, a truncated log or a
  re-created topic.
* rewind: load again from an offset or a time.
"""
