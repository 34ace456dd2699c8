"""Several drivers that share the partitions of a connector: who should have what. Pure."""
