"""Verifies a data directory that nobody is using: every record, footer, index row and mark.

Finds everything it can: bytes that are no record do not end it. Changes nothing; `repair.py` does.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path

from binlogd.binlog import BinlogType
from binlogd.errors import CorruptRecord
from binlogd.host.disk import disk_errors
from binlogd.log import gone
from binlogd.log.directory import pump_directory, value_directory
from binlogd.log.drive import DiskReading
from binlogd.log.index_file import FILES, Marks, Segment
from binlogd.log.pointer import (
    FIRST,
    MISSING,
    FileId,
    ValuePointer,
    missing_fids,
    segment_fid,
    segment_name,
)
from binlogd.log.record import FOOTER_BYTES, FRAMING, HEADER_BYTES, decode, footer_ts
from binlogd.log.scan import Batch, Unreadable, survey
from binlogd.ports import Disk
from binlogd.pump.checking.index_audit import IndexAudit, Row
from binlogd.pump.kept_routing import kept_routing
from binlogd.pump.log.entry import Entry
from binlogd.pump.log.kind import entry_of
from binlogd.pump.route import Routing
from binlogd.tso import NO_TS, Tso

FINDINGS_MAX = 10_000
"""Of one shard: a segment full of noise says nothing more after so many."""

OnProgress = Callable[[str, int, int], None]
"""Hears what is being read, how many bytes of all are read, and how many there are."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it must be. `kind` is record, footer, segment, index, mark or
    layout; `begin` and `end` are offsets in `path` where there are any."""

    kind: str
    path: str
    what: str
    begin: int | None = None
    end: int | None = None

    def __str__(self) -> str:
        place = "" if self.begin is None else f" at offset {self.begin}"
        return f"{self.path}{place}: {self.what}"


@dataclass(slots=True)
class ShardReport:
    """What one shard has. `torn_bytes` stand behind the last record, were never acknowledged, and
    go at the next start; that is no finding."""

    name: str
    segments: int = 0
    records: int = 0
    size_bytes: int = 0
    index_rows: int = 0
    torn_bytes: int = 0
    findings: list[Finding] = field(default_factory=list)
    left_out: int = 0
    newest_ts: Tso = NO_TS
    marked_ts: Tso = NO_TS

    def find(self, finding: Finding) -> None:
        """Takes a finding, or counts it if there are too many."""
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)
        else:
            self.left_out += 1


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What a data directory has, and all that is wrong with it."""

    directory: str
    shards: tuple[ShardReport, ...]
    layout: tuple[Finding, ...] = ()

    @property
    def findings(self) -> list[Finding]:
        """All of them, in the order of shards and files."""
        return [*self.layout, *(each for shard in self.shards for each in shard.findings)]

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found."""
        return not self.findings


async def check(directory: Path, disk: Disk, on_progress: OnProgress) -> CheckReport:
    """Checks what is below `pump/` of a data directory, whose lock the caller holds.

    Raises ConfigError when there is no Pump's data, LogFailed when the disk cannot be read.
    """
    pump = pump_directory(directory)
    routing = await kept_routing(pump, disk)
    layout, values = [], []
    for number in range(routing.shards):
        value = value_directory(pump, number)
        try:
            values.append((value, sum((await disk.sizes(value)).values())))
        except OSError as error:
            layout.append(Finding("layout", str(value), error.strerror or str(error)))
    whole, done = sum(size for _, size in values), 0
    reports = []
    for value, size in values:
        checked = _ShardCheck(value, disk, routing, partial(_tell, on_progress, done, whole))
        with disk_errors(value):
            reports.append(await checked.run())
        done += size
    newest = max((report.newest_ts for report in reports), default=NO_TS)
    for report in reports:
        if report.marked_ts > newest:
            what = f"max_commit_ts {report.marked_ts} is above every binlog ({newest})"
            report.find(Finding("mark", str(pump / report.name / FILES[0]), what))
    return CheckReport(str(directory), tuple(reports), tuple(layout))


def _tell(on_progress: OnProgress, before: int, whole: int, path: str, read: int) -> None:
    on_progress(path, before + read, whole)


class _ShardCheck:
    """One pass over one shard."""

    def __init__(
        self, value: Path, disk: Disk, routing: Routing, on_progress: Callable[[str, int], None]
    ) -> None:
        self._value = value
        self._index_path = value.with_name(FILES[0])
        self._disk = disk
        self._routing = routing
        self._number = int(value.parent.name.rpartition("-")[2])
        self._on_progress = on_progress
        self._read_bytes = 0
        self._open: dict[Tso, ValuePointer] = {}
        self._marks = Marks()
        self._bounds: set[ValuePointer] = set()  # marks that stand where a record begins or ends
        self._nowhere: Counter[str] = Counter()  # rows, by the segment that they miss
        self._audit: IndexAudit | None = None
        self.report = ShardReport(value.parent.name)

    async def run(self) -> ShardReport:
        """Raises OSError."""
        sizes = await self._disk.sizes(self._value)
        fids = self._fids(sizes)
        async with AsyncExitStack() as stack:
            known = await self._opened(stack)
            first_fid = await self._first_fid()
            self._check_names(fids, known, first_fid)
            for fid in fids:
                if fid >= first_fid:
                    size = sizes[segment_name(fid)]
                    await self._check_segment(fid, size, known.get(fid), is_last=fid == fids[-1])
            await self._check_rows(first_fid)
            await self._check_marks(fids, sizes)
        return self.report

    # --- files ---------------------------------------------------------------------------------

    def _fids(self, sizes: dict[str, int]) -> list[FileId]:
        found = []
        for name in sizes:
            try:
                fid = segment_fid(name)
            except ValueError as error:
                self._find("layout", self._value / name, f"{error}: move that file away")
                continue
            if fid is not None:
                found.append(fid)
        return sorted(found)

    async def _first_fid(self) -> FileId:
        path = gone.path(self._value)
        try:
            gc_ts, first_fid = await gone.said(self._value, self._disk)
        except CorruptRecord as error:
            self._find("mark", path, error.reason)
            return self._marks.first_fid
        if (gc_ts, first_fid) < (self._marks.gc_ts, self._marks.first_fid):
            self._find("mark", path, f"it says less is gone than the index does: {self._marks}")
        return max(first_fid, self._marks.first_fid)

    def _check_names(
        self, fids: list[FileId], known: dict[FileId, Segment], first_fid: FileId
    ) -> None:
        there = {fid for fid in fids if fid >= first_fid}
        gaps = islice(missing_fids(there, first_fid), FINDINGS_MAX + 1)  # a name may be nonsense
        for fid in sorted({*gaps, *(known.keys() - there)}):
            self._find("segment", self._path(fid), MISSING)

    async def _check_segment(
        self, fid: FileId, size: int, known: Segment | None, *, is_last: bool
    ) -> None:
        path, before = self._path(fid), self._read_bytes
        head = self._marks.head
        torn_from = (head.offset if fid == head.fid else 0) if is_last and fid >= head.fid else None
        steps = survey(FRAMING, size=size, torn_from=torn_from)
        reading = DiskReading(self._disk, path, steps)
        index_ts = any_ts = NO_TS
        async for batch in reading.batches():
            entries = self._entries_of(fid, batch)
            await self._check_filed(entries)
            for entry in entries:
                index_ts = max(index_ts, entry.index_ts)
                any_ts = max(any_ts, entry.start_ts, entry.commit_ts)
            self.report.records += len(batch)
            end = ValuePointer(fid, batch[-1][0] + HEADER_BYTES + len(batch[-1][1]))
            self._note_bound(end)
            self._on_progress(str(path), before + end.offset)
        self._read_bytes = before + size
        self._on_progress(str(path), self._read_bytes)
        self._note_bound(ValuePointer(fid, size))
        self.report.segments += 1
        self.report.size_bytes += size
        self.report.newest_ts = max(self.report.newest_ts, any_ts)
        self._tell_unreadable(path, reading.found.unreadable)
        sealed_ts = footer_ts(reading.found.footer)
        if sealed_ts is not None and not index_ts <= sealed_ts <= max(any_ts, index_ts):
            what = f"the footer says {sealed_ts}, the newest record has {index_ts}"
            self._find("footer", path, what, size - FOOTER_BYTES, size)
        if known is not None:
            await self._check_known(known, size, sealed_ts, index_ts)

    def _tell_unreadable(self, path: Path, unreadable: Sequence[Unreadable]) -> None:
        for lost in unreadable:
            if lost.is_torn:
                self.report.torn_bytes = lost.end - lost.begin
            else:
                what = f"{lost.fault}; {lost.end - lost.begin} bytes are unreadable"
                self._find("record", path, what, lost.begin, lost.end)

    async def _check_known(
        self, known: Segment, size: int, sealed_ts: Tso | None, index_ts: Tso
    ) -> None:
        path = self._path(known.fid)
        if known.is_sealed and known.size_bytes != size:
            what = f"{size} bytes, the index remembers {known.size_bytes} of the sealed segment"
            self._find("segment", path, what)
        elif size < known.size_bytes:
            self._find("segment", path, f"{size} bytes, the index remembers {known.size_bytes}")
        if known.is_sealed and sealed_ts is not None and sealed_ts != known.max_ts:
            what = f"the footer says {sealed_ts}, the index remembers {known.max_ts}"
            self._find("footer", path, what, size - FOOTER_BYTES, size)
        elif known.size_bytes == size and known.max_ts < index_ts:
            what = f"the index remembers {known.max_ts} as its newest, a record has {index_ts}"
            self._find("segment", path, what)
        if known.checksum is not None and known.size_bytes == size:
            found = await self._disk.checksum(path, size)
            if found != known.checksum:
                what = f"checksum {found:08x}, the index remembers {known.checksum:08x}"
                self._find("segment", path, what)

    def _entries_of(self, fid: FileId, batch: Batch) -> list[Entry]:
        entries = []
        for offset, payload in batch:
            pointer = ValuePointer(fid, offset)
            self._note_bound(pointer)
            try:
                entry = entry_of(fid, offset, payload, self._path)
            except CorruptRecord as error:
                self._find("record", self._path(fid), error.reason, offset, None)
                continue
            entries.append(entry)
            if entry.tp != BinlogType.PREWRITE:
                self._open.pop(entry.start_ts, None)
            elif pointer < self._marks.handle:
                self._open.setdefault(entry.start_ts, pointer)
            if entry.start_ts and self._routing.shard_of(entry.start_ts) != self._number:
                what = (
                    f"start_ts {entry.start_ts} belongs to shard"
                    f" {self._routing.shard_of(entry.start_ts)} of {self._routing.shards}"
                )
                self._find("record", self._path(fid), what, offset, entry.end.offset)
        return entries

    # --- index ---------------------------------------------------------------------------------

    async def _opened(self, stack: AsyncExitStack) -> dict[FileId, Segment]:
        """Opens the index if it can be read, and takes what it remembers."""
        if self._index_path.name not in await self._disk.sizes(self._index_path.parent):
            self._find("index", self._index_path, "it is missing")
            return {}
        try:
            audit = await stack.enter_async_context(IndexAudit.open(self._index_path))
            for text in await audit.damage():
                self._find("index", self._index_path, text)
            marks, known = await audit.marks(), await audit.segments()
        except (sqlite3.Error, ValueError) as error:
            self._find("index", self._index_path, str(error))
            return {}
        if marks is None:
            self._find("index", self._index_path, "it has no marks: it was never filled")
            return {}
        self._audit, self._marks = audit, marks
        self.report.marked_ts = marks.max_commit_ts
        return {segment.fid: segment for segment in known}

    async def _check_filed(self, entries: list[Entry]) -> None:
        if self._audit is None:
            return
        try:
            for key, (fid, offset) in await self._audit.records(entries, self._marks.head):
                what = f"no row in {self._index_path.name}: {key}"
                self._find("index", self._path(fid), what, offset)
        except (sqlite3.Error, ValueError) as error:
            self._gave_up(error)

    async def _check_rows(self, first_fid: FileId) -> None:
        if self._audit is None:
            return
        try:
            self.report.index_rows = await self._audit.row_count(first_fid)
            async with aclosing(self._audit.rows_without_record(first_fid)) as pieces:
                async for rows in pieces:
                    for row in rows:
                        await self._check_row(row)
            for name, count in sorted(self._nowhere.items()):
                what = f"rows that lead to {name}, which is not there: {count}"
                self._find("index", self._index_path, what)
            for start_ts in await self._audit.rollbacks_without_record(first_fid):
                what = f"rollbacks {start_ts}: the log has no such record"
                self._find("index", self._index_path, what)
        except (sqlite3.Error, ValueError) as error:
            self._gave_up(error)

    async def _check_row(self, row: Row) -> None:
        path, (fid, offset, length) = self._path(row.place.fid), row.place
        what = ""
        if min(fid, offset, length) < 0:
            what = "it leads nowhere"
        else:
            try:
                (stretch,) = await self._disk.read(path, [(offset, HEADER_BYTES + length)])
            except FileNotFoundError:
                self._nowhere[path.name] += 1  # thousands, perhaps, for one reason
            else:
                payload = decode(stretch, length=length)
                what = payload if isinstance(payload, str) else self._mismatch(row, payload)
        if what:
            where = f"{row.table} {row.ts}, {row.start_ts} → {path.name} at {offset}"
            self._find("index", self._index_path, f"{where}: {what}")

    def _mismatch(self, row: Row, payload: bytes) -> str:
        try:
            entry = entry_of(row.place.fid, row.place.offset, payload, self._path)
        except CorruptRecord as error:
            return error.reason
        found = (entry.tp, entry.start_ts, entry.commit_ts)
        return "" if found == row.head else f"the record there is {found}"

    def _gave_up(self, error: Exception) -> None:
        self._find("index", self._index_path, str(error))
        self._audit = None

    # --- marks ---------------------------------------------------------------------------------

    def _note_bound(self, pointer: ValuePointer) -> None:
        if pointer in (self._marks.head, self._marks.handle):
            self._bounds.add(pointer)

    async def _check_marks(self, fids: list[FileId], sizes: dict[str, int]) -> None:
        if self._audit is None:
            return
        marks = self._marks
        end = ValuePointer(fids[-1], sizes[segment_name(fids[-1])]) if fids else FIRST
        for name, pointer in (("head_pointer", marks.head), ("handle_pointer", marks.handle)):
            if pointer > end:
                self._find("mark", self._index_path, f"{name} {tuple(pointer)} is behind the log")
            elif pointer not in self._bounds and pointer.fid in fids and pointer.offset:
                what = f"{name} {tuple(pointer)} is not where a record begins"
                self._find("mark", self._index_path, what)
        for start_ts, pointer in self._open.items():
            if pointer < marks.handle and not await self._audit.outcome(start_ts):
                what = f"the prewrite of {start_ts} is open, and handle_pointer has passed it"
                self._find("mark", self._path(pointer.fid), what, pointer.offset)

    def _find(
        self, kind: str, path: Path, what: str, begin: int | None = None, end: int | None = None
    ) -> None:
        self.report.find(Finding(kind, str(path), what, begin, end))

    def _path(self, fid: FileId) -> Path:
        return self._value / segment_name(fid)
