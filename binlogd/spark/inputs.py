"""Where the data source reads from: a data directory, an archive, or a running binlogd.

All three give the same transactions in the same order, and the DDL history that explains them. An
input is made anew in each process from the request alone, so nothing of it travels but words. A
running binlogd is asked over gRPC (PullBinlogs), and over HTTP for the DDL history and the marks.
Spark's Python workers have no event loop; one is run for each step of a pull.
"""

from __future__ import annotations

import asyncio
import http.client
import os
import shutil
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from functools import lru_cache
from itertools import islice
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from binlogd.archive.catalog import CATALOG_NAME, all_segments, history_of, read_catalog
from binlogd.archive.places import ArchivedIndex, DirectoryIndex, TransactionIndex, Unwanted
from binlogd.archive.reading import LogReader
from binlogd.archive.store import ArchiveStore
from binlogd.binlog import CommittedBinlog
from binlogd.client.pump_client import RemoteSource
from binlogd.errors import ConfigError, NotRunning, PumpUnavailable, Refused
from binlogd.host.clock import WallClock
from binlogd.host.tls import ClientTls, TlsFiles
from binlogd.host.words import local_path
from binlogd.log.directory import STORE_FILE
from binlogd.log.segment_index import SegmentIndex
from binlogd.spark.history import KnownHistory
from binlogd.spark.request import ReadRequest, given_jobs
from binlogd.status import GcStatus
from binlogd.tidb.model import Job, job_from_json, jobs_from_json
from binlogd.tso import Tso, physical_ms
from binlogd.upstream.store import kept_jobs

PUMP_SCHEME = "binlogd://"
PINS_PREFIX = ".reader-pins-"
AWAITED_MS = 60_000
"""Of a DDL job behind its first binlog."""
POLL_S = 0.5
ANSWER_S = 30.0
SILENCE_S = 60.0
"""A Pump says something every few seconds, if only a fake binlog."""
_ANSWER_BYTES_MAX = 1 << 30


def open_input(wanted: ReadRequest, pins: str = "") -> Input:
    """`pins` is what `pin` said elsewhere. Raises ConfigError."""
    if wanted.path.startswith(PUMP_SCHEME):
        return RemotePump(wanted)
    path = local_path(wanted.path)
    if path is None:
        return ArchiveInput(wanted)
    if not path.is_dir():
        raise ConfigError(
            f"{path}: there is no such directory on {socket.gethostname()}; workers on other"
            " machines read an archive or a running binlogd (binlogd://host:port)"
        )
    if (path / CATALOG_NAME).exists():
        return ArchiveInput(wanted)
    return DirectoryInput(wanted, pins)


def jobs_with(source: Input, job_id: int, commit_ts: Tso) -> list[Job]:
    """The DDL history, with this job as soon as it has it, of a binlog that is young.

    TiDB writes the binlog of a DROP COLUMN some seconds before its job is over, and only then it is
    in the history. Source: pingcap/tidb ddl/column.go (onDropColumn), ddl/ddl_worker.go.
    """
    clock, until_ms = WallClock(), awaited_until_ms(commit_ts)
    while True:  # ends with the job, or when the binlog is no longer young
        jobs = source.jobs()
        is_there = not job_id or any(job.id == job_id for job in jobs)
        if is_there or clock.wall_ms() > until_ms:
            return jobs
        time.sleep(POLL_S)  # noqa: TID251 - no event loop: a worker of Spark waits


def awaited_until_ms(commit_ts: Tso) -> int:
    """Up to when the job of a binlog may still come to the DDL history."""
    return min(physical_ms(commit_ts), WallClock().wall_ms()) + AWAITED_MS


class _Placed:
    """What an archive and a directory have in common: they know where transactions stand."""

    def __init__(self, wanted: ReadRequest, store: ArchiveStore, places: TransactionIndex) -> None:
        self._wanted, self._places = wanted, places
        self._reader = LogReader(store, places)

    def resolved_ts(self) -> Tso:
        """Up to where everything that commits is there."""
        return self._places.resolved_ts()

    def gone_ts(self) -> Tso:
        """Behind this nothing was deleted. Raises Refused where nobody knows."""
        return self._places.gone_ts()

    def begin(self, after: Tso, upto: Tso) -> Tso:
        """Where a read of (after, upto] begins that is planned now; NO_TS is the beginning of what
        is there. Raises Behind, here or by `binlogs`, for one before it."""
        return self._places.begin(after, upto)

    def bounds(self, after: Tso, upto: Tso, wanted: ReadRequest) -> list[Tso]:
        """Where to cut (after, upto] into parts; ascending, the last is `upto`."""
        return self._places.bounds(after, upto, wanted.partition_transactions)

    def has_any(self, after: Tso, upto: Tso) -> bool:
        """Whether something may have committed in (after, upto]."""
        return self._places.has_any(after, upto)

    def reach(self, after: Tso, upto: Tso, transactions: int) -> Tso:
        """The commit_ts that so many transactions reach, at most `upto`."""
        last = next(
            islice(self._places.found(after, upto, at_most=transactions), transactions - 1, None),
            None,
        )
        return Tso(last.commit_ts) if last is not None else upto

    def transactions(self, after: Tso, upto: Tso) -> int:
        """About how many committed in (after, upto]."""
        return self._places.transactions(after, upto)

    def binlogs(self, after: Tso, upto: Tso) -> Iterator[CommittedBinlog]:
        """The transactions in (after, upto], in commit order."""
        return self._reader.binlogs(after, upto)


class ArchiveInput(_Placed):
    """An archive; what is in it never changes. Its catalog tells where it begins, what a read of
    one table needs not look at, and how to cut the rest; no index is read for that."""

    def __init__(self, wanted: ReadRequest) -> None:
        self.url = wanted.path
        self._store = ArchiveStore.open(wanted.path)
        self._catalog = read_catalog(self._store)
        unwanted = self._unwanted if wanted.form == "rows" else None
        index = ArchivedIndex(self._store, self._catalog, unwanted)
        super().__init__(wanted, self._store, index)

    def segments(self) -> Iterator[SegmentIndex]:
        """Every segment that the catalog names."""
        return all_segments(self._store, self._catalog)

    def _unwanted(self) -> Unwanted:
        history = self.history()
        return Unwanted(history.elsewhere(self._wanted.table), history.jobs)

    def cluster_id(self) -> int | None:
        """Which cluster wrote it; None where that is not known."""
        return self._catalog.cluster_id

    def jobs(self) -> list[Job]:
        """The DDL history as it is known now."""
        if (given := given_jobs(self._wanted)) is not None:
            return given
        return jobs_from_json(history_of(self._store, self._catalog.history_crc32c))

    def history(self) -> KnownHistory:
        """The same for walks over the log; made once in a process, until there is another."""
        checksums = self._catalog.history_crc32c
        if self._wanted.schema_history or len(checksums) != 1:
            return KnownHistory(self.jobs())
        return _archived_history(self._store, checksums)

    def pin(self) -> str:
        """Nothing is to be kept: what is in an archive stays."""
        return ""


@lru_cache(1)  # tens of thousands of jobs take a hundred megabytes
def _archived_history(store: ArchiveStore, checksums: tuple[int, ...]) -> KnownHistory:
    return KnownHistory(jobs_from_json(history_of(store, checksums)))


class DirectoryInput(_Placed):
    """A data directory, of a binlogd that runs or not."""

    def __init__(self, wanted: ReadRequest, pins: str = "") -> None:
        self._data_dir = Path(local_path(wanted.path) or "").absolute()
        self._directory = DirectoryIndex(self._data_dir)
        super().__init__(wanted, ArchiveStore.open(str(pins or self._data_dir)), self._directory)

    def jobs(self) -> list[Job]:
        """The DDL history as it is known now."""
        if (given := given_jobs(self._wanted)) is not None:
            return given
        store = self._data_dir / STORE_FILE
        if not store.exists():
            raise ConfigError(
                f"{self._data_dir}: holds no {STORE_FILE} with the DDL history; give it by the"
                " option schemaHistory: a file with TiDB's answer at /ddl/history (binlogd pipeline"
                " --option schemaHistory=FILE, or upstream.schema-history of its --config)"
            )
        return [job_from_json(raw) for raw in kept_jobs(store)]

    def history(self) -> KnownHistory:
        """The same for walks over the log."""
        return KnownHistory(self.jobs())

    def cluster_id(self) -> int | None:
        """Not known."""
        return None

    def pin(self) -> str:
        """Hard links beside the log; "" where none can be made (then garbage that is collected
        meanwhile ends the reading with an error)."""
        owner = _application()
        pins = self._data_dir / f"{PINS_PREFIX}{socket.gethostname()}-{owner}"
        try:
            _sweep(self._data_dir)
            for shard in self._directory.shards:
                into = pins / shard.directory.relative_to(self._data_dir)
                into.mkdir(parents=True, exist_ok=True)
                _link(shard.segments().values(), into)
        except OSError:
            return ""
        return str(pins)


def _link(paths: Iterable[Path], into: Path) -> None:
    for path in paths:
        link = into / path.name
        if not link.exists():
            with suppress(FileExistsError):  # another read of this application did it
                link.hardlink_to(path)


class _PumpStatus(msgspec.Struct):
    max_commit_ts: Tso
    gc: GcStatus
    cluster_id: int | None


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
        return self._status().max_commit_ts

    def gone_ts(self) -> Tso:
        """Up to where something is gone, of whichever shard. Raises NotRunning."""
        return self._status().gc.gc_ts

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
        return self._status().cluster_id

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
        cluster_id = self._status().cluster_id
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

    def _status(self) -> _PumpStatus:
        try:
            return msgspec.json.decode(self._get("/status"), type=_PumpStatus)
        except ValueError as error:
            raise NotRunning(
                self._wanted.path, f"its status is not that of a Pump: {error}"
            ) from error

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
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=ANSWER_S, context=ClientTls(self._files).fresh()
        )


Input = ArchiveInput | DirectoryInput | RemotePump
"""What can be read. `pin` keeps what is there from being deleted, as long as the application runs,
and says where pinned files are, to be told to whoever reads."""


# --- whose pins they are -----------------------------------------------------------------------


def _application() -> str:
    """The process that the reading belongs to: Spark's JVM, above the Python that plans."""
    pid = os.getpid()
    comms = ((each, Path(f"/proc/{each}/comm")) for each in _ancestors(pid))
    with suppress(OSError):  # above a container, or another user's: nobody tells what it is
        pid = next((each for each, comm in comms if comm.read_text().strip() == "java"), pid)
    return f"{pid}-{_started(pid)}"


def _ancestors(pid: int) -> Iterator[int]:
    while pid > 1:  # ends at init
        fields = _stat(pid)
        if not fields:
            return
        pid = int(fields[1])
        yield pid


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return []


def _started(pid: int) -> str:
    fields = _stat(pid)
    return fields[19] if fields else "0"


def _sweep(data_dir: Path) -> None:
    """Removes the pins of applications of this machine that have ended."""
    mine = f"{PINS_PREFIX}{socket.gethostname()}-"
    for path in data_dir.glob(f"{mine}*"):
        pid, _, started = path.name.removeprefix(mine).partition("-")
        if pid.isdecimal() and started.isdecimal() and _started(int(pid)) != started:
            shutil.rmtree(path, ignore_errors=True)
