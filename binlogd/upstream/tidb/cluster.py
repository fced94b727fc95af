"""Which cluster a TiDB belongs to: PD's number, which TiDB itself tells nobody.

TiDB says at /settings where its PD is, and PD says its number over HTTP at the same address. Where
that does not work (PD is out of reach from here, or stands for itself), the first writer says it:
every binlog is sent with the number.
Source: TiDB pkg/server/http_status.go (/settings); PD server/api/cluster.go.
"""

from __future__ import annotations

import msgspec
import structlog

from binlogd.errors import UpstreamUnavailable
from binlogd.host.tls import ClientTls
from binlogd.upstream.tidb.servers import Several
from binlogd.upstream.tidb.status_port import StatusPort

log = structlog.get_logger(__name__)

_WHERE, _WHO = "/settings", "/pd/api/v1/cluster"


class _Config(msgspec.Struct):
    path: str
    store: str = ""


class _Cluster(msgspec.Struct):
    id: int


async def cluster_id(ports: Several[StatusPort], tls: ClientTls | None = None) -> int:
    """The number; 0 if nobody could be asked."""
    try:
        said = msgspec.json.decode(await ports.ask(lambda port: port.get(_WHERE)), type=_Config)
        pds = Several([_port(each, tls) for each in said.path.split(",") if each])
        who = await pds.ask(lambda pd: pd.get(_WHO))
        return msgspec.json.decode(who, type=_Cluster).id
    except (UpstreamUnavailable, msgspec.DecodeError, ValueError, UnicodeDecodeError) as error:
        log.info("cluster_id_not_told", cause=str(error), consequence="the first writer says it")
        return 0


def _port(address: str, tls: ClientTls | None) -> StatusPort:
    """Raises ValueError."""
    host, _, port = address.strip().rpartition(":")
    return StatusPort((host.strip("[]"), int(port)), tls)
