"""Tools that read several kinds of binlog files: a Pump's log, relay logs, files of a file sink."""
