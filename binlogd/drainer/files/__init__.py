"""The downstream that is binlog files, and the relay log in the original's format."""
