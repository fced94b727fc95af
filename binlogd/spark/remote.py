"""A running binlogd as an input: PullBinlogs over gRPC, the DDL history and the marks over HTTP.

Spark's Python workers have no event loop; here one is run for each step of a pull.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from binlogd.binlog import CommittedBinlog
from binlogd.client.pump_client import RemoteSource
from binlogd.errors import ConfigError, NotRunning, PumpUnavailable, Refused
from binlogd.host.tls import ClientTls, TlsFiles
from binlogd.spark.history import KnownHistory
from binlogd.spark.request import ReadRequest, given_jobs
from binlogd.tidb.model import Job, jobs_from_json
from binlogd.tso import Tso

ANSWER_S = 30.0
SILENCE_S = 60.0
"""A Pump says something every few seconds, if only a fake binlog."""
_ANSWER_BYTES_MAX = 1 << 30


class RemotePump:
    """A binlogd at `binlogd://host:port`."""

    def __init__(self, wanted: ReadRequest) -> None:
        try:
            parts = urlsplit(wanted.path)
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
        if not host or not port:
            raise ConfigError(f"option path: {wanted.path}: expected binlogd://host:port")
        self._wanted, self._host, self._port = wanted, host, port
        self._files: TlsFiles | None = None
        if wanted.ssl_ca:
            self._files = TlsFiles(
                ca=Path(wanted.ssl_ca),
                cert=Path(wanted.ssl_cert) if wanted.ssl_cert else None,
                key=Path(wanted.ssl_key) if wanted.ssl_key else None,
            )

    def resolved_ts(self) -> Tso:
        """What the Pump vouches for. Raises NotRunning."""
        return Tso(self._status()["max_commit_ts"])

    def gone_ts(self) -> Tso:
        """Up to where something is gone, of whichever shard. Raises NotRunning."""
        return Tso(self._status()["gc"]["gc_ts"])

    def begin(self, after: Tso, upto: Tso) -> Tso:
        """A Pump refuses by itself what it has deleted."""
        return after

    def jobs(self) -> list[Job]:
        """What it knows of the DDL history. Raises NotRunning, Corrupt."""
        given = given_jobs(self._wanted)
        return given if given is not None else jobs_from_json(self._get("/ddl/history"))

    def history(self) -> KnownHistory:
        """The same for walks over the log. Raises as `jobs`."""
        return KnownHistory(self.jobs())

    def cluster_id(self) -> int | None:
        """Whose binlogs it has; None as long as it has none."""
        found: int | None = self._status()["cluster_id"]
        return found

    def bounds(self, after: Tso, upto: Tso, wanted: ReadRequest) -> list[Tso]:
        """Equal stretches of time; where the log begins is not known before it is pulled."""
        parts = wanted.partitions if after > 0 else 1
        width = (upto - after) // parts
        return [*(Tso(after + width * part) for part in range(1, parts)), upto]

    def has_any(self, after: Tso, upto: Tso) -> bool:
        """Not known without a pull: a batch may be empty."""
        return upto > after

    def reach(self, after: Tso, upto: Tso, transactions: int) -> Tso:
        """Pulls so many, to see."""
        last = next(islice(self.binlogs(after, upto), transactions - 1, None), None)
        return last.commit_ts if last is not None else upto

    def transactions(self, after: Tso, upto: Tso) -> None:
        """Not known without a pull."""

    def pin(self) -> str:
        """A Pump keeps binlogs for a time that its configuration says."""
        return ""

    def binlogs(self, after: Tso, upto: Tso) -> Iterator[CommittedBinlog]:
        """The transactions in (after, upto]. Raises PumpUnavailable, Refused, Corrupt."""
        if after >= upto:
            return
        cluster_id = self._status()["cluster_id"]
        if cluster_id is None:
            raise Refused(f"{self._wanted.path}: has no cluster id yet: nothing was written to it")
        source = RemoteSource(
            "spark",
            self._host,
            self._port,
            cluster_id=cluster_id,
            tls=ClientTls(self._files, is_grpc=True) if self._files else None,
        )
        with asyncio.Runner() as runner:
            pull = source.pull(after)

            async def step() -> list[CommittedBinlog]:
                async with asyncio.timeout(SILENCE_S):
                    return list((await anext(pull)).binlogs)

            try:
                while True:  # ends with what reaches upto, or an error
                    for binlog in runner.run(step()):
                        if binlog.commit_ts <= upto and not binlog.is_fake:
                            yield binlog
                        if binlog.commit_ts >= upto:
                            return
            except TimeoutError as error:
                raise PumpUnavailable(
                    f"{self._wanted.path}: said nothing for {SILENCE_S:g} s"
                ) from error
            finally:
                runner.run(pull.aclose())

    def _status(self) -> dict[str, Any]:
        status: dict[str, Any] = json.loads(self._get("/status"))
        return status

    def _get(self, route: str) -> bytes:
        where = self._wanted.path + route
        try:
            with closing(self._connection()) as connection:
                connection.request("GET", route)
                answer = connection.getresponse()
                content = answer.read(_ANSWER_BYTES_MAX)
        except (OSError, http.client.HTTPException) as error:
            raise NotRunning(where, str(error) or type(error).__name__) from error
        if answer.status != 200:
            raise NotRunning(
                where, f"HTTP {answer.status}: {content[:200].decode(errors='replace')}"
            )
        return content

    def _connection(self) -> http.client.HTTPConnection:
        if self._files is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=ANSWER_S)
        context: ssl.SSLContext = ClientTls(self._files).fresh()
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=ANSWER_S, context=context
        )
