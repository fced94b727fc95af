"""The process that follows a log: each question says how far it is durable, and what is new goes
into the archive, as parts of the segments that grow. It lives as long as who asks.

What holds between its files is told at `catalog.ArchiveTail`. A part is cut when something
committed; what has prewrites or fakes alone waits for that, and moves the watermark all the same.
Parts of one tier are put together as soon as there are `MERGED` of them, so there are few, and each
byte is written again once a tier. After a start, everything behind the sealed segments is read and
written once more: so nothing is kept between two lives, and what an earlier one left goes with its
listing.
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic  # noqa: TID251 - no event loop: it blocks anyway
from typing import NamedTuple

import msgspec

from binlogd.archive.catalog import (
    HISTORY_NAME,
    TAIL_NAME,
    ArchiveTail,
    TailPart,
    encode_tail,
    parts_directory,
)
from binlogd.archive.files import bytes_path, commits_path
from binlogd.archive.places import encode_places, places_together
from binlogd.archive.store import ArchiveStore
from binlogd.archive.task import Follow, Stand
from binlogd.archive.upload import checksum_of, described
from binlogd.errors import Refused
from binlogd.host.child import give, yield_to_others
from binlogd.host.disk import alone_in
from binlogd.log.directory import pump_directory, segment_file
from binlogd.log.drive import segment_batches
from binlogd.log.pointer import FileId
from binlogd.log.record import end_of, extend
from binlogd.log.segment_index import Fold, SyncPoint

MEMORY_BYTES_MAX = 1 << 30
CUT_BYTES = 16 << 20
"""What is read at once, and waits for a commit at most."""
PART_BYTES_MAX = 64 << 20
"""Larger ones are not put together: a segment has some ten of them then."""
MERGED = 8
GRACE_S = 600.0
"""So long a part stays that gave way: who read `tail.json` before need not read it again."""
REMOVED_MAX = 32
"""In a round: some more than come in one."""
HISTORY_S = 60.0
"""A job comes to the DDL history some seconds behind its binlog, or never."""
_BESIDE = "is being followed by another process: it ends with the binlogd that started it"


class _Held(NamedTuple):
    """A part, and how often its bytes were put together."""

    part: TailPart
    tier: int


@dataclass(slots=True)
class _Shard:
    """How far one log is told: up to `offset` of segment `fid`, and put away up to `begin`."""

    number: int
    fold: Fold
    fid: int
    begin: int = 0
    offset: int = 0
    held: list[_Held] = field(default_factory=list)


class Follower:
    """What lies behind the sealed segments of one archive. All of it blocks."""

    def __init__(self, data_dir: Path, url: str, *, grace_s: float = GRACE_S) -> None:
        self._data_dir, self._grace_s = data_dir, grace_s
        self._store = ArchiveStore.open(url)
        self._written: bytes | None = None
        self._shards: dict[int, _Shard] = {}
        self._gave_way: list[str] = []
        self._leaving: deque[tuple[float, str]] = deque()
        self._jobs: dict[int, float] = {}

    def follow(self, asked: Follow) -> bool:
        """One round, and whether the archive has all of it now; if not, its DDL history lacks a
        job. Raises Refused for a gap, or where another process writes the tail; Corrupt,
        ArchiveUnavailable, OSError."""
        for number, stand in enumerate(asked.shards):
            self._catch_up(number, stand)
        parts = [each.part for _, of in sorted(self._shards.items()) for each in of.held]
        lacks = self._lacks_jobs()
        if not lacks:
            self._publish(ArchiveTail(resolved_ts=asked.resolved_ts, parts=tuple(parts)))
            self._sweep()
        return not lacks

    # --- one shard -----------------------------------------------------------------------------

    def _catch_up(self, number: int, stand: Stand) -> None:
        shard = self._shards.get(number)
        if not stand.segments:
            return
        while shard is not None and shard.held and shard.held[0].part.fid <= stand.archived:
            self._leave(shard.held.pop(0).part)
        if shard is None or shard.fid <= stand.archived:
            shard = self._begun(number, stand)
        for segment in stand.segments:
            if segment.fid < shard.fid:
                continue
            self._read(shard, segment.size_bytes)
            if segment.is_sealed or shard.fold.places:
                self._cut(shard)
            if segment.is_sealed:
                shard.fid, shard.begin, shard.offset = segment.fid + 1, 0, 0
                shard.fold.begin(shard.fid)

    def _begun(self, number: int, stand: Stand) -> _Shard:
        """Behind what is archived."""
        first, before = stand.segments[0].fid, None
        if stand.archived >= 0:
            if first != stand.archived + 1:
                raise Refused(
                    f"shard {number} goes on with segment {first}, the archive ends with"
                    f" {stand.archived}: what lies between was deleted"
                )
            before = described(self._store, number, stand.archived)
        fold = Fold(number, before)
        fold.begin(first)
        shard = self._shards[number] = _Shard(number, fold, first)
        return shard

    def _path(self, shard: _Shard) -> Path:
        return segment_file(self._data_dir, shard.number, FileId(shard.fid))

    def _read(self, shard: _Shard, size: int) -> None:
        path = self._path(shard)
        for batch in segment_batches(path, start=shard.offset, size=size, is_last=False):
            for offset, payload in batch:
                shard.fold.take(offset, payload)
            shard.offset = end_of(*batch[-1])
            if shard.offset - shard.begin >= CUT_BYTES:
                self._cut(shard)
        shard.offset = size  # with the footer, where it has one

    def _cut(self, shard: _Shard) -> None:
        """What was read, as a part of its own."""
        if shard.offset == shard.begin:
            return
        size, begin = shard.offset - shard.begin, shard.begin
        checksum = checksum_of(self._path(shard), size, begin)
        index = shard.fold.index(size_bytes=size, crc32c=checksum, is_sealed=False)
        self._jobs |= {job: self._jobs.get(job, monotonic()) for job in index.ddl_jobs}
        content, _ = encode_places(shard.fold.places)
        sync = tuple(SyncPoint(each.offset - begin, each.seen_ts) for each in index.sync)
        fields = msgspec.structs.asdict(msgspec.structs.replace(index, open=(), sync=sync))
        part = TailPart(**fields | {"begin": begin, "places_crc32c": extend(0, content)})
        self._put(shard, part, content, 0)
        shard.begin = shard.offset
        shard.fold.begin(shard.fid, shard.offset)
        self._merge(shard)

    def _put(self, shard: _Shard, part: TailPart, places: bytes, tier: int) -> None:
        self._store.put_file(bytes_path(part), self._path(shard), part.size_bytes, part.begin)
        self._store.put(commits_path(part), places)
        shard.held.append(_Held(part, tier))

    def _merge(self, shard: _Shard) -> None:
        while len(shard.held) >= MERGED:  # ends: there are fewer after each turn
            last = shard.held[-MERGED:]
            parts = [each.part for each in last]
            is_one = {(each.tier, each.part.fid) for each in last} == {(last[0].tier, shard.fid)}
            if not is_one or sum(each.size_bytes for each in parts) > PART_BYTES_MAX:
                return
            content = places_together(self._store, parts)
            size, begin = parts[-1].end - parts[0].begin, parts[0].begin
            merged = together(parts, checksum_of(self._path(shard), size, begin), content)
            del shard.held[-MERGED:]
            self._put(shard, merged, content, last[0].tier + 1)
            for part in parts:
                self._leave(part)

    # --- all of them ---------------------------------------------------------------------------

    def _lacks_jobs(self) -> bool:
        """Whether the archive's DDL history has not got a job of a part yet that may come."""
        if self._jobs:
            history = self._store.found(HISTORY_NAME)
            if history is None:
                return True
            known = {each.id for each in msgspec.json.decode(history, type=list[_Job])}
            over_s = monotonic() - HISTORY_S
            self._jobs = {
                job: seen_s
                for job, seen_s in self._jobs.items()
                if job not in known and seen_s > over_s
            }
        return bool(self._jobs)

    def _publish(self, tail: ArchiveTail) -> None:
        content = encode_tail(tail)
        if content == self._written:
            return
        if self._written is None:
            self._leave_others(tail.parts)
        elif self._store.read(TAIL_NAME) != self._written:
            raise Refused(
                f"{self._store.url}/{TAIL_NAME}: another process has written it: two binlogd may"
                " not keep one archive; give each its own by archive.url"
            )
        self._store.put(TAIL_NAME, content)
        self._written = content
        over_s = monotonic() + self._grace_s
        self._leaving.extend((over_s, name) for name in self._gave_way)
        self._gave_way.clear()

    def _leave_others(self, parts: Sequence[TailPart]) -> None:
        """What an earlier life put there and this one does not name."""
        named = {path(part) for part in parts for path in (bytes_path, commits_path)}
        for number in self._shards:
            directory = parts_directory(number)
            names = [f"{directory}/{name}" for name in self._store.names(directory)]
            self._gave_way += [each for each in names if each not in named]

    def _leave(self, part: TailPart) -> None:
        self._gave_way += [bytes_path(part), commits_path(part)]

    def _sweep(self) -> None:
        for _ in range(REMOVED_MAX):
            if not self._leaving or self._leaving[0][0] > monotonic():
                return
            self._store.remove(self._leaving.popleft()[1])


class _Job(msgspec.Struct):
    id: int


def together(parts: Sequence[TailPart], crc32c: int, places: bytes) -> TailPart:
    """Neighbours as one part, whose commits stand in `places`."""
    first, last = parts[0], parts[-1]
    tables: Counter[int] = Counter()
    for part in parts:
        tables.update(part.tables)
    committed = [part for part in parts if part.transactions]
    carried = {table for part in parts for table in part.carried or ()}
    return msgspec.structs.replace(
        last,
        begin=first.begin,
        size_bytes=last.end - first.begin,
        crc32c=crc32c,
        transactions=sum(part.transactions for part in parts),
        min_ts=min((part.min_ts for part in committed), default=0),
        max_ts=max((part.max_ts for part in committed), default=0),
        ddl_jobs=tuple(dict.fromkeys(job for part in parts for job in part.ddl_jobs)),
        tables=dict(sorted(tables.items())),
        sync=tuple(
            SyncPoint(part.begin - first.begin + each.offset, each.seen_ts)
            for part in parts
            for each in part.sync
        ),
        carried=None if any(part.carried is None for part in parts) else tuple(sorted(carried)),
        places_crc32c=extend(0, places),
    )


def main() -> int:
    """A question a line, and its answer; CANNOT and a sentence on standard error when it cannot."""
    yield_to_others(MEMORY_BYTES_MAX)
    return give(_conversation, "what is new takes more memory than the process may have")


def _conversation() -> bytes:
    line = sys.stdin.buffer.readline()
    asked = msgspec.json.decode(line, type=Follow)
    with alone_in(pump_directory(Path(asked.data_dir)), _BESIDE):
        follower = Follower(Path(asked.data_dir), asked.url)
        while line:  # ends with who asks
            answer = follower.follow(msgspec.json.decode(line, type=Follow))
            sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
            sys.stdout.buffer.flush()
            line = sys.stdin.buffer.readline()
    return b""


if __name__ == "__main__":
    sys.exit(main())
