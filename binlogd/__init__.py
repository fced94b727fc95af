"""binlogd: a TiDB cluster's changes, somewhere else, out of one process."""

__version__ = "0.1.0"
