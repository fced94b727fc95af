"""Committed transactions out of any binlog files, in commit order: what the tools are built on.

    sources = find_sources([Path("/var/lib/binlogd")])
    for transaction in transactions(sources, Window(start, stop), jobs=jobs, meter=Meter()):
        for row in transaction.rows(): ...

| path                                                   | is                                    |
|--------------------------------------------------------|---------------------------------------|
| a data directory, its `pump`, a shard, `value`, *.vlog | a Pump's log, ours or the Go Pump's   |
| a directory with `relay-*.log`, such files             | binlogd's relay log                   |
| a directory with `binlog-*`, such files                | a file sink's log, or the original's  |
|                                                        | relay log; compressed (.tar.gz) too   |

Rows come with names. A Pump's log holds none: `jobs`, the upstream's DDL history, explains it; a
relay log has its own snapshot of the schema; the other files tell names themselves.

Invariants. Commit order over all sources, one transaction in memory at a time, each transaction
once: the same commit_ts from a second source is passed over. Nothing is skipped: damage ends the
reading with the path and the offset. A running binlogd may go on with these files meanwhile.
"""

from __future__ import annotations

import gzip
import heapq
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import repeat
from pathlib import Path

from binlogd.drainer.files.log import is_log_file, log_files
from binlogd.errors import ConfigError, Corrupt, CorruptRelay
from binlogd.log.directory import STORE_FILE, ShardDirectory, data_directory, shards_below
from binlogd.log.pointer import segment_fid
from binlogd.relay.frame import suffix_of
from binlogd.tidb.model import Job, job_from_json, jobs_from_json
from binlogd.tidb.schema import SchemaTracker
from binlogd.tools.named_files import named_transactions, relay_transactions
from binlogd.tools.pump_log import Joined, joined
from binlogd.tools.raw import RawReader
from binlogd.tools.transaction import CommitWindow, Meter, Transaction
from binlogd.tso import NO_TS, Tso
from binlogd.wire.peek import body

_WITHOUT_PREWRITE = "its prewrite is not in the log (deleted by pump.gc, or never sent)"


class SourceKind(StrEnum):
    """What files are."""

    PUMP = "pump log"
    RELAY = "relay log"
    NAMED = "binlog files"


@dataclass(frozen=True, slots=True)
class Source:
    """One log: a Pump's with its shards, or files in order; `path` is what it was found by."""

    kind: SourceKind
    path: Path
    shards: tuple[ShardDirectory, ...] = ()
    files: tuple[Path, ...] = ()
    newest: Path | None = None
    """The last file of the log, which `files` may be a part of; only it may end inside a record."""


def find_sources(paths: Iterable[Path]) -> list[Source]:
    """What these paths hold; files of one directory are one source.

    Raises ConfigError for a path that is missing or holds no binlogs, CorruptRelay when a file is
    missing in the middle of a log.
    """
    found: list[Source] = []
    files: dict[Path, list[Path]] = {}
    for path in paths:
        if path.is_dir():
            found.append(_directory(path))
        elif path.is_file():
            files.setdefault(path.parent, []).append(path)
        else:
            raise ConfigError(f"{path}: there is no such file or directory")
    return found + [_files(directory, chosen) for directory, chosen in files.items()]


def transactions(
    sources: Sequence[Source],
    window: CommitWindow,
    *,
    jobs: Sequence[Job] = (),
    meter: Meter,
    only: Sequence[Tso] | None = None,
) -> Iterator[Transaction]:
    """The transactions of all sources whose commit_ts lies in the window, in commit order. With
    `only`, of a Pump's log those with these commit_ts.

    Raises CorruptRecord or CorruptRelay for bytes that do not verify, OSError.
    """
    # the Pumps of a cluster share one schema, and a DDL stands in the log of one of them
    shards = [shard for source in sources for shard in source.shards]
    found = [_of_files(source, window, meter) for source in sources if not source.shards]
    if shards:
        found.append(_of_pumps(shards, window, jobs, meter, only))
    streams = [zip(repeat(number), stream, strict=False) for number, stream in enumerate(found)]
    last_ts, owner = NO_TS, -1
    for number, transaction in heapq.merge(*streams, key=lambda each: (each[1].commit_ts, each[0])):
        if transaction.commit_ts == last_ts and number != owner:
            continue  # two copies of one log overlap
        last_ts, owner = transaction.commit_ts, number
        yield transaction


def _of_files(source: Source, window: CommitWindow, meter: Meter) -> Iterator[Transaction]:
    if source.kind is SourceKind.RELAY:
        return relay_transactions(source.files, window, meter)
    assert source.newest is not None
    return named_transactions(source.files, window, meter, newest=source.newest)


def _of_pumps(
    shards: Sequence[ShardDirectory],
    window: CommitWindow,
    jobs: Sequence[Job],
    meter: Meter,
    only: Sequence[Tso] | None,
) -> Iterator[Transaction]:
    streams = [joined(shard, window, meter, only) for shard in shards]
    merged = heapq.merge(*streams, key=lambda one: (one.commit_ts, one.start_ts))
    return explained(merged, jobs, is_whole=only is None)


def explained(
    found: Iterable[Joined], jobs: Sequence[Job], *, is_whole: bool
) -> Iterator[Transaction]:
    """Joined binlogs in commit order with what the DDL history says of them; `is_whole`: all that
    there are from the first on. Raises Corrupt."""
    by_id = {job.id: job for job in jobs}
    schema = SchemaTracker()
    schema.load(jobs)
    reader = RawReader(schema)
    moments = sorted({ts for job in jobs for ts in (job.start_ts + 1, job.finished_ts)})
    passed = -1
    last = NO_TS, NO_TS
    for each in found:
        if (each.commit_ts, each.start_ts) == last:
            continue  # sent to two Pumps: the answer of the first was lost
        last = each.commit_ts, each.start_ts
        # DDL before the first does not come any more, nor, where some are left out, any of those
        if passed < 0 or (not is_whole and bisect_right(moments, each.commit_ts) != passed):
            schema.apply_finished_by(each.commit_ts)
            passed = bisect_right(moments, each.commit_ts)
        read = reader.read(
            each.start_ts,
            each.commit_ts,
            each.payload,
            by_id.get(body(each.payload).ddl_job_id),
            place=each.place,
            prewrite_place=each.prewrite_place,
        )
        if each.prewrite_place is None:
            read = replace(read, note=_WITHOUT_PREWRITE)
        yield read


# --- what a path holds -----------------------------------------------------------------------


def _directory(path: Path) -> Source:
    shards = shards_below(path)
    if shards:
        return Source(SourceKind.PUMP, path, shards=tuple(shards))
    names = [entry.name for entry in path.iterdir()]
    if any(suffix_of(name) is not None for name in names):
        return _relay(path, [path / name for name in names])
    if any(is_log_file(name) for name in names):
        files = tuple(path / file.name for file in log_files(names))
        return Source(SourceKind.NAMED, path, files=files, newest=files[-1])
    raise ConfigError(
        f"{path}: holds no binlogs: neither a Pump's data directory, nor segments (*.vlog), nor a"
        " relay log (relay-*.log), nor files of a file sink (binlog-*)"
    )


def _relay(path: Path, candidates: Iterable[Path]) -> Source:
    files = sorted(each for each in candidates if suffix_of(each.name) is not None)
    for number, file in enumerate(files):
        if suffix_of(file.name) != (suffix_of(files[0].name) or 0) + number:
            raise CorruptRelay(file, 0, "the file before it is missing")
    return Source(SourceKind.RELAY, path, files=tuple(files), newest=files[-1])


def _files(directory: Path, chosen: Sequence[Path]) -> Source:
    if all(suffix_of(file.name) is not None for file in chosen):
        return _relay(chosen[0], chosen)
    if all(file.suffix == ".vlog" and segment_fid(file.name) is not None for file in chosen):
        return Source(
            SourceKind.PUMP, chosen[0], shards=(ShardDirectory(directory, None, tuple(chosen)),)
        )
    if all(is_log_file(file.name) for file in chosen):
        there = log_files([entry.name for entry in directory.iterdir()])
        wanted = log_files([file.name for file in chosen])
        files = tuple(directory / file.name for file in wanted)
        return Source(SourceKind.NAMED, chosen[0], files=files, newest=directory / there[-1].name)
    unknown = next(file for file in chosen if not is_log_file(file.name))
    raise ConfigError(
        f"{unknown}: is no binlog file by its name, or stands beside files of another kind: give"
        " *.vlog, relay-*.log or binlog-* files of one kind"
    )


_GZIP_MAGIC = b"\x1f\x8b"


def known_jobs(sources: Iterable[Source], history: Path | None) -> list[Job]:
    """Jobs by id: those that were kept beside the sources, and those of a file with TiDB's answer
    at /ddl/history. Raises ConfigError, Corrupt."""
    found: dict[int, Job] = {}
    for source in sources:
        from binlogd.upstream.store import kept_jobs  # with its database, which files need not

        stores = {data_directory(shard.directory) / STORE_FILE for shard in source.shards}
        for store in sorted(path for path in stores if path.is_file()):
            found |= {job.id: job for job in map(job_from_json, kept_jobs(store))}
    if history is not None:
        found |= {job.id: job for job in _of_file(history)}
    return [found[job_id] for job_id in sorted(found)]


def _of_file(path: Path) -> list[Job]:
    try:
        content = path.read_bytes()
        if content.startswith(_GZIP_MAGIC):
            content = gzip.decompress(content)
        return jobs_from_json(content)
    except (OSError, EOFError, zlib.error, Corrupt) as error:
        raise ConfigError(
            f"--schema-history {path}: is not the JSON that TiDB serves at /ddl/history: {error}"
        ) from error
