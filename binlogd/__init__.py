"""binlogd: a TiDB cluster's changes, somewhere else, out of one process."""

from binlogd.native import refuse_stale

__version__ = "0.1.0"

refuse_stale()
