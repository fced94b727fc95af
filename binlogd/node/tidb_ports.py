"""The TiDBs of a configuration; who names none imports nothing of this."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec import structs

from binlogd.ports import TxnStatusSource
from binlogd.settings.config import tidb_addresses
from binlogd.settings.setup import Setup, plain_tls
from binlogd.status import UpstreamPart
from binlogd.upstream.tidb.jobs import TidbJobs
from binlogd.upstream.tidb.servers import Several
from binlogd.upstream.tidb.sql import SqlLogin, TidbSql
from binlogd.upstream.tidb.status_port import StatusPort, TidbTables
from binlogd.upstream.tidb.txn_status import TidbTxnStatus


@dataclass(frozen=True, slots=True)
class TidbPorts:
    """The TiDBs of a configuration, and what they can be asked."""

    sql: Sequence[TidbSql]
    sessions: Several[TidbSql]
    ports: Several[StatusPort]

    @classmethod
    def of(cls, setup: Setup) -> TidbPorts:
        """Connects to none of them yet. Raises ConfigError."""
        upstream, tls = setup.config.upstream, plain_tls(setup.config.security)
        addresses = tidb_addresses(upstream)
        login = SqlLogin(upstream.user, upstream.password, tls if upstream.sql_tls else None)
        sql = [TidbSql(address, login) for address, _ in addresses]
        ports = [StatusPort(address, tls) for _, address in addresses]
        return cls(sql, Several(sql, "tidb, MySQL port"), Several(ports, "tidb, status port"))

    def jobs(self) -> TidbJobs:
        """The DDL jobs that they tell."""
        return TidbJobs(self.ports, self.sessions)

    def fates(self, otherwise: TxnStatusSource) -> TidbTxnStatus:
        """What became of transactions; where they do not know, as `otherwise` says."""
        return TidbTxnStatus(self.ports, otherwise)

    def tables(self) -> TidbTables:
        """The names of tables."""
        return TidbTables(self.ports)

    def parts(self) -> tuple[Callable[[], UpstreamPart], ...]:
        """How it stands with them."""
        return self._part, self.ports.statistics

    def _part(self) -> UpstreamPart:
        versions = (each.version for each in self.sql if each.version)
        return structs.replace(self.sessions.statistics(), version=next(versions, ""))

    def close(self) -> None:
        """Ends the connections."""
        for connection in self.sql:
            connection.close()
