"""Earlier snapshots and Dumpling dumps that a snapshot is built on."""
