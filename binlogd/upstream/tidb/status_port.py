"""A TiDB's status port: HTTP and JSON, of bounded size and time; and what is asked there at once.

Source: TiDB docs/tidb_http_api.md, /db-table/{tableID}; pkg/server/http_status.go (/settings); PD
server/api/cluster.go.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import structlog

from binlogd.errors import UpstreamUnavailable
from binlogd.host.http import NoAnswer, http_session
from binlogd.host.tls import ClientTls
from binlogd.settings.quantities import host_and_port, shown_address
from binlogd.upstream.tidb.servers import Several

log = structlog.get_logger(__name__)

ANSWER_S = 10.0
ANSWER_BYTES_MAX = 64 << 20


class StatusPort:
    """The routes of one TiDB. With `tls` they are asked for by https."""

    def __init__(self, address: tuple[str, int], tls: ClientTls | None = None) -> None:
        self._address = address
        self.tls = tls
        """None for plain HTTP."""

    def __str__(self) -> str:
        return "{}:{}".format(*self._address)

    def url(self, path: str) -> str:
        """The address of a route."""
        return f"{'https' if self.tls else 'http'}://{shown_address(self._address)}{path}"

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> bytes:
        """The body of an answer. Raises UpstreamUnavailable, also for an answer that is an error:
        another TiDB may know better."""
        url, params = self.url(path), dict(query or {})
        try:
            async with http_session(ANSWER_S, self.tls) as asking:
                answer = await asking.ask("GET", url, bytes_max=ANSWER_BYTES_MAX, params=params)
        except NoAnswer as error:
            raise self._error(path, str(error)) from error
        if answer.status != 200:
            raise self._error(path, answer.refusal)
        return answer.body

    def _error(self, path: str, reason: str) -> UpstreamUnavailable:
        return UpstreamUnavailable(f"tidb {self}{path}: {reason}")


# --- the cluster ------------------------------------------------------------------------------

_WHERE, _WHO = "/settings", "/pd/api/v1/cluster"


class _Config(msgspec.Struct):
    path: str
    store: str = ""


class _Cluster(msgspec.Struct):
    id: int


async def cluster_id(ports: Several[StatusPort], tls: ClientTls | None = None) -> int:
    """PD's number of the cluster, which TiDB itself tells nobody; 0 if nobody could be asked.

    TiDB says where its PD is, and PD says its number over HTTP at the same address. Where that does
    not work (PD is out of reach from here, or stands for itself), the first writer says it: every
    binlog is sent with the number.
    """
    try:
        said = msgspec.json.decode(await ports.ask(lambda port: port.get(_WHERE)), type=_Config)
        given = filter(None, said.path.split(","))
        pds = Several([StatusPort(host_and_port(each), tls) for each in given])
        who = await pds.ask(lambda pd: pd.get(_WHO))
        return msgspec.json.decode(who, type=_Cluster).id
    except (UpstreamUnavailable, msgspec.DecodeError, ValueError, UnicodeDecodeError) as error:
        log.info("cluster_id_not_told", cause=str(error), consequence="the first writer says it")
        return 0


# --- tables -----------------------------------------------------------------------------------


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
    """What a TiDB calls a table now, by its id: for an error that knows nothing but the id.

    Asked when something is wrong already, so that it never fails by itself. The Drainer's own
    schema comes from the jobs, as of each binlog; this is of the present.
    """

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
