"""A shard's log: segments of records on disk, appended in groups, read back, let go when old."""
