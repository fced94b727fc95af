"""A TiDB as the upstream: its MySQL port and its status port."""
