"""What a TiDB calls a table now, by its id: for an error that knows nothing but the id.

The Drainer's own schema comes from the jobs, as of each binlog; this is of the present, and only
said to an operator. Source: TiDB docs/tidb_http_api.md, /db-table/{tableID}.
"""

from __future__ import annotations

import msgspec

from binlogd.errors import UpstreamUnavailable
from binlogd.upstream.tidb.servers import Several
from binlogd.upstream.tidb.status_port import StatusPort


class _Name(msgspec.Struct):
    O: str = ""  # noqa: E741 - TiDB's own key: the name as it was written


class _Database(msgspec.Struct):
    db_name: _Name


class _Table(msgspec.Struct):
    name: _Name


class _DbTable(msgspec.Struct):
    db_info: _Database
    table_info: _Table
    schema_version: int = 0


class TidbTables:
    """Asked when something is wrong already, so that it never fails by itself."""

    def __init__(self, ports: Several[StatusPort]) -> None:
        self._ports = ports

    async def name(self, table_id: int) -> str:
        """`schema.table` and the schema version that it is of; "" when TiDB has no such table, or
        does not answer."""
        try:
            answer = await self._ports.ask(lambda port: port.get(f"/db-table/{table_id}"))
            found = msgspec.json.decode(answer, type=_DbTable)
        except (UpstreamUnavailable, msgspec.DecodeError, UnicodeDecodeError):
            return ""
        table = f"{found.db_info.db_name.O}.{found.table_info.name.O}"
        return f"{table} in schema version {found.schema_version}"
