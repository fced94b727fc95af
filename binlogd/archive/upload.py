"""Segments of a data directory into an archive, one after the other, each with its index.

Order: the DDL history, the segment, where its commits stand, what describes it, the catalog. Each
is there with all of its content before the next begins, so killed at any moment the archive is what
the last catalog says, and the next round goes on behind it. Blocks; has a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from binlogd.archive.catalog import (
    BOUND_NAME,
    CATALOG_NAME,
    HISTORY_NAME,
    ArchiveCatalog,
    TailPart,
    all_segments,
    bounded,
    by_shard,
    decode_catalog,
    history_of,
    put_catalog,
    read_bound,
    read_catalog,
    removed,
)
from binlogd.archive.files import bytes_path, commits_path, index_path, segment_path
from binlogd.archive.places import encode_places, gone_from
from binlogd.archive.store import ArchiveStore
from binlogd.archive.task import Archived, Task
from binlogd.binlog import BinlogType
from binlogd.errors import ConfigError, Corrupt, MalformedBinlog, Refused
from binlogd.host.disk import alone_in
from binlogd.log.checked_text import checksummed_json, decoded_json
from binlogd.log.directory import STORE_FILE, ShardDirectory, shards_below
from binlogd.log.drive import Reading, has_footer, of_forward, segment_batches
from binlogd.log.record import FRAMING, end_of, extend
from binlogd.log.scan import End, Ending, scan
from binlogd.log.segment_index import Fold, SegmentIndex, resolved
from binlogd.tso import NO_TS, Tso
from binlogd.upstream.store import kept_jobs
from binlogd.wire.peek import peek

_READ_BYTES = 1 << 20
_BESIDE = (
    "is being archived by another process: try again when that is done, or leave it to the node,"
    " which does it by itself with archive.url"
)


Report = Callable[[str, int, int], None]
"""What is done, with how many bytes of how many."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A segment that is not in the archive yet, or has grown since."""

    shard: int
    fid: int
    path: Path
    size_bytes: int
    is_sealed: bool
    is_last: bool


def archive(task: Task, report: Report = lambda *_: None) -> Archived:
    """One round, alone: the catalog is read, added to and written whole, and a Pump removes what a
    round said is there. Two at once would lose from it what one of them said.

    Raises ConfigError, Refused for an archive of another log or with a gap, Corrupt,
    ArchiveUnavailable, Unavailable while another process archives this directory, OSError.
    """
    data_dir = Path(task.data_dir)
    shards = shards_below(data_dir)
    if not shards:
        raise ConfigError(f"{data_dir}: is no data directory of a Pump")
    with alone_in(data_dir, _BESIDE):
        return _round(task, shards, report)


def _round(task: Task, shards: Sequence[ShardDirectory], report: Report) -> Archived:
    store = ArchiveStore.open(task.url)
    kept = stored = _kept(store, task, len(shards))
    gone_ts = kept.gone_ts if kept.segments else _gone_ts(shards)
    known = {(each.shard, each.fid): each for each in kept.segments}
    _check_own(store, shards, kept, known)
    first = kept.first_fids()
    waiting = [
        each
        for number, shard in enumerate(shards)
        for each in _waiting(number, shard, known, with_open=task.with_open)
    ]
    round_ = waiting[: task.segments_max or None]
    kept = msgspec.structs.replace(
        kept,
        cluster_id=kept.cluster_id if task.cluster_id is None else task.cluster_id,
        gone_ts=gone_ts,
        history_crc32c=_put_history(store, task, kept),
    )
    if not round_ and kept != stored:  # what follows the log has nothing else to begin with
        kept = put_catalog(store, kept, task.page_segments)
    total, done, transactions = sum(each.size_bytes for each in round_), 0, 0
    for each in round_:
        has_before = each.fid > first.setdefault(each.shard, each.fid)
        before = described(store, each.shard, each.fid - 1) if has_before else None
        index = _archived(store, each, before, task)
        done += index.size_bytes
        transactions += index.transactions
        is_whole = task.with_open and each is round_[-1] and len(round_) == len(waiting)
        is_whole = is_whole and all(at.path.stat().st_size == at.size_bytes for at in waiting)
        kept = put_catalog(store, _with(store, kept, index, is_whole=is_whole), task.page_segments)
        report(segment_path(each.shard, each.fid), done, total)
    return Archived(
        segments=len(round_),
        size_bytes=done,
        transactions=transactions,
        resolved_ts=kept.resolved_ts,
        left=len(waiting) - len(round_),
        newest={
            shard: each.fid if each.is_sealed else each.fid - 1
            for shard, each in kept.newest().items()
        },
        gone_ts=max(kept.gone_ts, kept.leaving_ts),
    )


def _gone_ts(shards: Sequence[ShardDirectory]) -> Tso:
    """What an archive that begins now will never have; where nobody knows, its readers say so."""
    with suppress(Refused):
        return max(gone_from(number, each) for number, each in enumerate(shards))
    return NO_TS


def _kept(store: ArchiveStore, task: Task, shards: int) -> ArchiveCatalog:
    """The archive as it is; an empty one where there is none."""
    try:
        catalog = decode_catalog(store.read(CATALOG_NAME), store.url)
    except FileNotFoundError as error:
        if BOUND_NAME in store.names():
            raise Refused(
                f"{store.url}: has lost its {CATALOG_NAME}, and {BOUND_NAME} says that it was an"
                " archive: put the catalog back, or begin another archive at an empty place"
            ) from error
        return ArchiveCatalog(cluster_id=task.cluster_id, shards=shards, resolved_ts=0, segments=())
    is_other = task.cluster_id is not None and catalog.cluster_id not in (None, task.cluster_id)
    if is_other or catalog.shards != shards:
        raise Refused(
            f"{store.url}: is the archive of another log (cluster {catalog.cluster_id},"
            f" {catalog.shards} shards; this is cluster {task.cluster_id}, {shards} shards): name"
            " another place by archive.url"
        )
    return bounded(catalog, read_bound(store))


def _check_own(
    store: ArchiveStore,
    shards: Sequence[ShardDirectory],
    kept: ArchiveCatalog,
    known: Mapping[tuple[int, int], SegmentIndex],
) -> None:
    """Raises Refused where no file that is there is the one that was archived by its number, or a
    shard ends before its archive: those of another Pump of the cluster, or of this one before its
    disk was lost, are called the same."""
    is_ahead = any(
        each.is_sealed and each.fid > max(shards[number].segments(), default=-1)
        for number, each in kept.newest().items()
    )
    alike = [
        path.stat().st_size == there.size_bytes
        for number, shard in enumerate(shards)
        for fid, path in shard.segments().items()
        if (there := known.get((number, fid))) is not None and there.is_sealed
    ]
    if is_ahead or (len(alike) > 1 and not any(alike)):  # one alone may have been repaired
        raise Refused(
            f"{store.url}: is the archive of another Pump, or of another data directory: its"
            " segments are none of these: name another place by archive.url"
        )


def _waiting(
    number: int,
    shard: ShardDirectory,
    known: Mapping[tuple[int, int], SegmentIndex],
    *,
    with_open: bool,
) -> Iterator[_Waiting]:
    """In order. Raises Refused when one between was deleted."""
    segments = shard.segments()
    last = max(segments, default=-1)
    archived = [fid for of, fid in known if of == number]  # those before them are in pages
    following = max(archived, default=-1) + 1
    if archived and segments and min(segments) > following:
        raise Refused(
            f"segments {following} to {min(segments) - 1} of shard {number} were deleted before"
            " they were archived, so the archive ends there: begin another one at an empty place"
        )
    for fid, path in segments.items():
        size, kept = path.stat().st_size, known.get((number, fid))
        is_sealed = fid < last or has_footer(path)
        is_paged = bool(archived) and fid < min(archived)
        if is_paged or (kept is not None and (kept.is_sealed or kept.size_bytes >= size)):
            continue
        if is_sealed or (with_open and size):
            yield _Waiting(number, fid, path, size, is_sealed, fid == last)


def described(store: ArchiveStore, shard: int, fid: int) -> SegmentIndex:
    """A segment with what was open at its end, which the catalog does not tell. Raises Corrupt."""
    name = index_path(shard, fid)
    try:
        return decoded_json(store.read(name), SegmentIndex)
    except (ValueError, FileNotFoundError) as error:
        raise Corrupt(
            f"{store.url}/{name}: {error}; `binlogd archive --check` tells more"
        ) from error


def _archived(
    store: ArchiveStore, each: _Waiting, before: SegmentIndex | None, task: Task
) -> SegmentIndex:
    fold = Fold(each.shard, before)
    fold.begin(each.fid)
    end, may_be_torn = 0, each.is_last and not each.is_sealed
    for batch in segment_batches(each.path, is_last=may_be_torn):
        for offset, payload in batch:
            fold.take(offset, payload)
        end = end_of(*batch[-1])
    for mark in task.marks.get(each.shard, ()):
        if mark.newest <= each.fid:
            fold.decide(mark.fid, mark.offset)
    size = each.size_bytes if each.is_sealed else end
    index = fold.index(
        size_bytes=size, crc32c=checksum_of(each.path, size), is_sealed=each.is_sealed
    )
    places, stretches = encode_places(fold.places)
    if each.is_sealed:  # else readers of the catalog before may find more of them
        index = msgspec.structs.replace(index, places_crc32c=extend(0, places), places=stretches)
    store.put_file(segment_path(each.shard, each.fid), each.path, size)
    store.put(commits_path(index), places)
    store.put(index_path(each.shard, each.fid), checksummed_json(msgspec.json.encode(index)))
    return index


def checksum_of(path: Path, size: int, begin: int = 0) -> int:
    """The CRC-32C of `size` bytes of a file from `begin` on."""
    checksum, left = 0, size
    with path.open("rb") as file:
        file.seek(begin)
        while left > 0 and (part := file.read(min(left, _READ_BYTES))):
            checksum = extend(checksum, part)
            left -= len(part)
    return checksum


def _with(
    store: ArchiveStore, catalog: ArchiveCatalog, index: SegmentIndex, *, is_whole: bool
) -> ArchiveCatalog:
    """The catalog with one segment more, or in the place of what it was. Up to where it is complete
    tells the newest segment of each shard; `is_whole` as `resolved` has it."""
    others = (each for each in catalog.segments if by_shard(each) != by_shard(index))
    now = msgspec.structs.replace(index, open=())
    found = msgspec.structs.replace(catalog, segments=tuple(sorted((*others, now), key=by_shard)))
    newest = [described(store, shard, each.fid) for shard, each in found.newest().items()]
    resolved_ts = resolved(newest, catalog.shards, is_whole=is_whole)
    return msgspec.structs.replace(found, resolved_ts=resolved_ts)


def _put_history(store: ArchiveStore, task: Task, kept: ArchiveCatalog) -> tuple[int, ...]:
    """Before the segments that need it; its checksum. Who reads meanwhile, or after a crash, finds
    in the catalog those of both."""
    if task.history:
        content = Path(task.history).read_bytes()
    else:
        stored = Path(task.data_dir, STORE_FILE)
        content = b"[" + b",".join(kept_jobs(stored)) + b"]" if stored.exists() else b"[]"
    now = extend(0, content)
    before = store.read(HISTORY_NAME) if HISTORY_NAME in store.names() else None
    if before != content:
        if before is not None:
            both = (extend(0, before), now)
            put_catalog(
                store, msgspec.structs.replace(kept, history_crc32c=both), task.page_segments
            )
        store.put(HISTORY_NAME, content)
    return (now,)


# --- is all of it there? -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verified:
    """What was read, and what is wrong with it."""

    segments: int
    size_bytes: int
    problems: tuple[str, ...]


def verify(url: str, report: Report = lambda *_: None) -> Verified:
    """Reads every byte of an archive. Raises ConfigError, Corrupt, ArchiveUnavailable."""
    store = ArchiveStore.open(url)
    catalog = read_catalog(store)
    segments = sorted(all_segments(store, catalog), key=by_shard)
    total, done = sum(each.size_bytes for each in segments), 0
    problems: list[str] = []
    try:
        history_of(store, catalog.history_crc32c)
    except (Corrupt, FileNotFoundError) as error:
        problems.append(str(error))
    following: dict[int, int] = {}
    for each in segments:
        if following.get(each.shard, each.fid) != each.fid and not isinstance(each, TailPart):
            problems.append(f"shard {each.shard}: no segment {following[each.shard]}")
        following[each.shard] = each.fid + 1
        problem = _problem(store, each)
        problems += [problem] if problem else []
        done += each.size_bytes
        report(bytes_path(each), done, total)
    return Verified(len(segments), done, tuple(problems))


def _problem(store: ArchiveStore, segment: SegmentIndex) -> str:
    name, is_part = bytes_path(segment), isinstance(segment, TailPart)
    content = _Content(store.stretches(name))
    try:
        end, commits = _counted(name, content)
        content.pass_over()
        index = segment if is_part else described(store, segment.shard, segment.fid)
        places = store.read(commits_path(segment))
    except FileNotFoundError as error:
        is_removed = removed(store, segment.shard, segment.fid) is not None
        has_moved = is_part and segment not in read_catalog(store).segments
        return "" if is_removed or has_moved else f"{store.url}: {error}"
    except Corrupt as error:
        return str(error)
    if (content.size_bytes, content.crc32c) != (segment.size_bytes, segment.crc32c):
        return (
            f"{store.url}/{name}: {content.size_bytes} bytes with CRC-32C {content.crc32c:08x}, the"
            f" catalog says {segment.size_bytes} bytes with {segment.crc32c:08x}"
        )
    wrong = ""
    if segment.places_crc32c not in (None, extend(0, places)):
        wrong = f"{commits_path(segment)} has another checksum than the catalog"
    elif index.crc32c != segment.crc32c:
        wrong = "has another index"
    elif end.ending is not Ending.WHOLE:
        wrong = f"the bytes at offset {end.offset} are no record: {end.reason}"
    elif commits != segment.transactions:
        wrong = (
            f"holds {commits} commits, its index tells {segment.transactions}: it was archived"
            " short, and what reads the archive lacks the others; archive it anew, elsewhere"
        )
    return f"{store.url}/{name}: {wrong}" if wrong else ""


class _Content:
    """The bytes of a segment from front to back, with their number and checksum so far."""

    def __init__(self, stretches: Iterator[bytes]) -> None:
        self.size_bytes = self.crc32c = 0
        self._stretches = stretches

    def more(self, least: int) -> bytes:
        """So many bytes at least, unless it ends before."""
        found = b""
        while len(found) < least and (stretch := next(self._stretches, b"")):
            self.size_bytes += len(stretch)
            self.crc32c = extend(self.crc32c, stretch)
            found += stretch
        return found

    def pass_over(self) -> None:
        """Up to the end."""
        while self.more(1):
            pass


def _counted(name: str, content: _Content) -> tuple[End, int]:
    """Where the records end, and the commits among them: an index may tell less than its segment
    has. Raises Corrupt for a record that is no binlog."""
    commits = 0
    reading = Reading(scan(FRAMING, size=None), of_forward(content.more))
    for batch in reading.batches():
        for offset, payload in batch:
            try:
                head = peek(payload)
            except MalformedBinlog as error:
                raise Corrupt(f"{name} at offset {offset}: {error}") from error
            commits += head.tp == BinlogType.COMMIT and head.commit_ts != 0
    return reading.found, commits
