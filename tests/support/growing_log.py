"""A data directory that grows, with bytes behind what is durable, and a follower of it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from binlogd.archive.catalog import read_catalog
from binlogd.archive.places import ArchivedIndex
from binlogd.archive.reading import LogReader
from binlogd.archive.store import ArchiveStore
from binlogd.archive.task import Follow, Grown, Stand, Task
from binlogd.archive.upload import archive
from binlogd.binlog import CommittedBinlog
from binlogd.log.directory import segment_file
from binlogd.log.pointer import FileId
from binlogd.log.record import encode, footer
from binlogd.log.segment_index import Fold
from binlogd.tso import NO_TS, Tso
from binlogd.wire.binlogs import commit_binlog
from binlogd.wire.peek import head_and_canonical, peek
from tests.support.logged import Logged

TORN = encode(commit_binlog(Tso(10), Tso(15))) + encode(b"half of what comes next")[:-3]
"""What was appended, and nobody was told of: it is cut away."""


class GrowingLog:
    """The payloads of a workload so far, of some shards."""

    def __init__(self, data_dir: Path, *, shards: int = 4, segment_bytes: int = 1 << 14) -> None:
        self.data_dir, self._segment_bytes = data_dir, segment_bytes
        self._resolved_ts = NO_TS
        self._folds = [Fold(number) for number in range(shards)]
        self.segments = [[Grown(0, 0, False)] for _ in range(shards)]
        for number in range(shards):
            self._write(number, b"")

    def append(self, payloads: Iterable[bytes]) -> None:
        """Each to the shard of its transaction."""
        new: list[list[bytes]] = [[] for _ in self.segments]
        for payload in payloads:
            start_ts = peek(payload).start_ts
            new[(start_ts >> 18 ^ start_ts) % len(new)].append(head_and_canonical(payload)[1])
        for number, some in enumerate(new):
            for payload in some:
                self._append(number, payload)

    @property
    def resolved_ts(self) -> Tso:
        """Up to where all is there, as a Pump without witnesses knows it: what was so once, is so
        when a prewrite comes that says less."""
        self._resolved_ts = max(self._resolved_ts, min(each.resolved_ts for each in self._folds))
        return self._resolved_ts

    def follow(self, url: str, archived: dict[int, int] | None = None) -> Follow:
        """What a node asks for."""
        behind = [(archived or {}).get(number, -1) for number in range(len(self.segments))]
        stands = tuple(
            Stand(fid, tuple(each for each in segments if each.fid > fid))
            for fid, segments in zip(behind, self.segments, strict=True)
        )
        return Follow(
            data_dir=str(self.data_dir), url=url, resolved_ts=self.resolved_ts, shards=stands
        )

    def _append(self, number: int, payload: bytes) -> None:
        last = self.segments[number][-1]
        self._folds[number].take(last.size_bytes, payload)
        self._write(number, encode(payload))
        if self.segments[number][-1].size_bytes > self._segment_bytes:
            self._seal(number)

    def _seal(self, number: int) -> None:
        segments = self.segments[number]
        self._write(number, footer(self._folds[number].resolved_ts))
        segments[-1] = msgspec.structs.replace(segments[-1], is_sealed=True)
        os.truncate(self._path(number), segments[-1].size_bytes)
        segments.append(Grown(segments[-1].fid + 1, 0, False))
        self._folds[number].begin(segments[-1].fid)
        self._write(number, b"")

    def _write(self, number: int, content: bytes) -> None:
        """Behind it stands what was not acknowledged."""
        last = self.segments[number][-1]
        path = self._path(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("r+b" if path.exists() else "w+b") as file:
            file.seek(last.size_bytes)
            file.write(content + TORN)
        size = last.size_bytes + len(content)
        self.segments[number][-1] = msgspec.structs.replace(last, size_bytes=size)

    def _path(self, number: int) -> Path:
        return segment_file(self.data_dir, number, FileId(self.segments[number][-1].fid))


def archive_all(logged: Logged, url: str) -> None:
    """As it is."""
    history = str(logged.history)
    archive(Task(data_dir=str(logged.data_dir), url=url, history=history, with_open=True))


def binlogs(url: str, upto: Tso | None = None) -> list[CommittedBinlog]:
    """What a reader of now finds up to where the archive is complete."""
    store = ArchiveStore.open(url)
    catalog = read_catalog(store)
    found = LogReader(store, ArchivedIndex(store, catalog))
    return list(found.binlogs(NO_TS, Tso(catalog.resolved_ts) if upto is None else upto))
