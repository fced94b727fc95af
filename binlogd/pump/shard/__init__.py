"""One shard: its log and index made one, in order, and what those who pull are given."""
