"""Tools that read several kinds of binlog files, outside a running process."""
