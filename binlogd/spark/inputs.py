"""Where the data source reads from: a data directory, an archive, or a running binlogd.

All three give the same transactions in the same order, and the DDL history that explains them. An
input is made anew in each process from the request alone, so nothing of it travels but words.
"""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from pathlib import Path

from binlogd.archive.catalog import CATALOG_NAME, all_segments, history_of, read_catalog
from binlogd.archive.places import ArchivedIndex, DirectoryIndex, TransactionIndex, Unwanted
from binlogd.archive.reading import LogReader
from binlogd.archive.store import ArchiveStore
from binlogd.binlog import CommittedBinlog
from binlogd.errors import ConfigError
from binlogd.host.clock import WallClock
from binlogd.log.directory import STORE_FILE
from binlogd.log.segment_index import SegmentIndex
from binlogd.spark.history import KnownHistory
from binlogd.spark.remote import RemotePump
from binlogd.spark.request import ReadRequest, given_jobs
from binlogd.tidb.model import Job, job_from_json, jobs_from_json
from binlogd.tso import Tso, physical_ms
from binlogd.upstream.store import kept_jobs

PUMP_SCHEME = "binlogd://"
PINS_PREFIX = ".reader-pins-"
AWAITED_MS = 60_000
"""Of a DDL job behind its first binlog."""
POLL_S = 0.5


def open_input(wanted: ReadRequest, pins: str = "") -> Input:
    """`pins` is what `pin` said elsewhere. Raises ConfigError."""
    if wanted.path.startswith(PUMP_SCHEME):
        return RemotePump(wanted)
    path = Path(wanted.path.removeprefix("file://"))
    if "://" in wanted.path and not wanted.path.startswith("file://"):
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
        return after

    def bounds(self, after: Tso, upto: Tso, wanted: ReadRequest) -> list[Tso]:
        """Where to cut (after, upto] into parts; ascending, the last is `upto`."""
        every = wanted.partition_transactions
        found = [
            Tso(each.commit_ts)
            for each in islice(self._places.found(after, upto), every - 1, None, every)
        ]
        return [*(each for each in found if each < upto), upto]

    def has_any(self, after: Tso, upto: Tso) -> bool:
        """Whether something may have committed in (after, upto]."""
        return next(self._places.found(after, upto, at_most=1), None) is not None

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
        self._index = ArchivedIndex(self._store, self._catalog, unwanted)
        super().__init__(wanted, self._store, self._index)

    def segments(self) -> Iterator[SegmentIndex]:
        """Every segment that the catalog names."""
        return all_segments(self._store, self._catalog)

    def _unwanted(self) -> Unwanted:
        history = self.history()
        return Unwanted(history.elsewhere(self._wanted.table), history.jobs)

    def begin(self, after: Tso, upto: Tso) -> Tso:
        """As of all, by the catalog alone."""
        return self._index.begin(after, upto)

    def bounds(self, after: Tso, upto: Tso, wanted: ReadRequest) -> list[Tso]:
        """As of all, by the catalog alone."""
        return self._index.bounds(after, upto, wanted.partition_transactions)

    def has_any(self, after: Tso, upto: Tso) -> bool:
        """As of all, by the catalog alone."""
        return self._index.has_any(after, upto)

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
        self._data_dir = Path(wanted.path.removeprefix("file://")).absolute()
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


Input = ArchiveInput | DirectoryInput | RemotePump
"""What can be read. `pin` keeps what is there from being deleted, as long as the application runs,
and says where pinned files are, to be told to whoever reads."""


# --- whose pins they are -----------------------------------------------------------------------


def _application() -> str:
    """The process that the reading belongs to: Spark's JVM, above the Python that plans."""
    pid = os.getpid()
    for ancestor in _ancestors(pid):
        if Path(f"/proc/{ancestor}/comm").read_text().strip() == "java":
            pid = ancestor
            break
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
        if pid.isdigit() and _started(int(pid)) != started:
            shutil.rmtree(path, ignore_errors=True)
