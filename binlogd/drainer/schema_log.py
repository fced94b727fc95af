"""The schema beside the checkpoint: a snapshot, and every DDL since, each with its commit_ts.

A start takes the newest snapshot that the checkpoint has reached and applies the DDLs up to the
checkpoint, in the order of their commit_ts: the exact schema of the checkpoint, which a schema
version cannot name when DDLs ran side by side, and without the history that led there. Layout:
docs/FORMAT.md, "Schema log".

Invariant. Every DDL that the sink was given is in the log (synced) before. A new file is begun
when the DDLs outweigh the snapshot; the one before goes when the saved checkpoint has passed the
new one's base, and the new one when a checkpoint before its base is taken up: one file has all that
follows its base. What is damaged, or does not lead to the checkpoint's schema version, is passed
over, which is logged: the history has it all.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path

import msgspec
import structlog

from binlogd.drainer.checkpoint import Checkpoint
from binlogd.errors import Corrupt, LogFailed
from binlogd.host.disk import disk_errors, opened_again
from binlogd.log.record import FRAMING, encode, end_of, extend, header_for
from binlogd.ports import AppendFile, Disk
from binlogd.tidb.model import Job, job_from_json
from binlogd.tidb.schema import SchemaTracker
from binlogd.tso import NO_TS, Tso

_NAME = re.compile(r"schema-([0-9]{20})\.log")
_EVENTS_BYTES_MIN = 4 << 20
"""A new file is not begun before so much was added to the last."""
_APPLIED_AT_ONCE = 50

log = structlog.get_logger(__name__)


class SchemaEvent(msgspec.Struct, frozen=True):
    """A DDL binlog that took its effect."""

    commit_ts: int
    schema_state: int
    job: msgspec.Raw

    @classmethod
    def of(cls, commit_ts: Tso, schema_state: int, job: Job) -> SchemaEvent:
        """The event of a job."""
        return cls(commit_ts, schema_state, msgspec.Raw(job.raw))


class _HeadJson(msgspec.Struct, frozen=True):
    base_ts: int
    version: int


_HEAD = msgspec.json.Decoder(_HeadJson)
_EVENTS = msgspec.json.Decoder(list[SchemaEvent])


class SchemaLog:
    """One directory, one writer. Methods raise LogFailed."""

    def __init__(self, directory: Path, disk: Disk) -> None:
        self._directory, self._disk = directory, disk
        self._file: AppendFile | None = None
        self._bases: list[Tso] = []
        self._snapshot_bytes = 0
        self._after, self._held = NO_TS, set[int]()
        """What was there where this life begins: all up to a commit_ts, and these."""

    async def load(self, checkpoint: Checkpoint) -> SchemaTracker | None:
        """The schema at a checkpoint; None when it is not here, for a reason that was logged."""
        await self.close()
        try:
            await self._disk.make_directory(self._directory)
            self._bases = sorted(
                Tso(int(found[1]))
                for name in await self._disk.sizes(self._directory)
                if (found := _NAME.fullmatch(name))
            )
            usable = [base for base in self._bases if base <= checkpoint.commit_ts]
            if usable and checkpoint.schema_version:
                # an older one may lack a DDL that is in the newest, and no version would tell
                tracker = await self._read(usable[-1], checkpoint)
                # the DDLs that come go to this file, not to those that were begun later
                await self._remove([base for base in self._bases if base > usable[-1]])
                return tracker
        except Corrupt as error:
            log.warning("schema_snapshot_passed_over", cause=str(error))
        except OSError as error:
            raise LogFailed(self._directory, error) from error
        return None

    async def begin(self, tracker: SchemaTracker, base_ts: Tso) -> None:
        """Begins a file with the schema as of `base_ts`; nothing beyond it is known any more."""
        await self.close()
        path = self._path(base_ts)
        head = msgspec.json.encode(_HeadJson(base_ts, tracker.version))
        pieces, checksum = [], 0
        for number, piece in enumerate(tracker.snapshot_pieces()):
            pieces.append(piece)
            checksum = extend(checksum, piece)
            if number % _APPLIED_AT_ONCE == 0:
                await asyncio.sleep(0)  # tables by the thousand; the tracker waits for us
        snapshot_header = header_for(sum(map(len, pieces)), checksum)
        with disk_errors(path):
            await self._remove([base for base in self._bases if base >= base_ts])
            self._file = await self._disk.open_append(path, create=True)
            await self._file.append([encode(head), snapshot_header, *pieces], sync=True)
        self._snapshot_bytes = self._file.size
        self._bases.append(base_ts)
        self._after, self._held = base_ts, set()
        log.info("schema_snapshot_written", base_ts=base_ts, size_bytes=self._snapshot_bytes)

    async def append(self, events: Sequence[SchemaEvent]) -> bool:
        """Returns when the events are durable; True when it is time to begin a new file. What is
        there already (it comes again after a restart) is passed over; a late commit may come
        between two that are there."""
        assert self._file is not None, "append before begin"
        new = [event for event in events if event.commit_ts > self._after]
        fresh = [event for event in new if event.commit_ts not in self._held]
        if not fresh:
            return False
        with disk_errors(self._directory):
            await self._file.append([encode(msgspec.json.encode(fresh))], sync=True)
        added = self._file.size - self._snapshot_bytes
        return added > max(_EVENTS_BYTES_MIN, self._snapshot_bytes)

    async def collect(self, saved_ts: Tso) -> None:
        """Removes files that no checkpoint from `saved_ts` on needs."""
        reached = [base for base in self._bases if base <= saved_ts]
        with disk_errors(self._directory):
            await self._remove(reached[:-1])

    async def _remove(self, gone: Sequence[Tso]) -> None:
        if gone:
            await self._disk.remove([self._path(base) for base in gone])
            self._bases = [base for base in self._bases if base not in gone]

    async def close(self) -> None:
        """Lets go of the file. Safe to call twice."""
        file, self._file = self._file, None
        if file is not None:
            await file.close()

    # --- reading ---------------------------------------------------------------------------

    async def _read(self, base_ts: Tso, checkpoint: Checkpoint) -> SchemaTracker:
        path = self._path(base_ts)
        sizes = await self._disk.sizes(self._directory)
        (data,) = await self._disk.read(path, [(0, sizes[path.name])])
        split = FRAMING.split(data)
        payloads = [payload for _, payload in split.records]
        if len(payloads) < 2:
            raise Corrupt(f"{path}: {split.fault or 'ends inside its snapshot'}")
        try:
            head = _HEAD.decode(payloads[0])
            events = [each for payload in payloads[2:] for each in _EVENTS.decode(payload)]
        except msgspec.DecodeError as error:
            raise Corrupt(f"{path}: {error}") from error
        if head.base_ts != base_ts:
            raise Corrupt(f"{path}: is of commit_ts {head.base_ts}")
        tracker = SchemaTracker.from_snapshot(payloads[1])
        applied = 0
        for event in sorted(events, key=attrgetter("commit_ts")):
            if event.commit_ts <= checkpoint.commit_ts:
                tracker.apply(job_from_json(bytes(event.job)), event.schema_state)
                applied += 1
                if applied % _APPLIED_AT_ONCE == 0:
                    await asyncio.sleep(0)
        if tracker.version != checkpoint.schema_version:
            raise Corrupt(
                f"{path}: leads to schema version {tracker.version}, the checkpoint is at"
                f" {checkpoint.schema_version}"
            )
        if split.consumed < len(data):
            log.warning("schema_log_tail_cut", path=str(path), offset=split.consumed)
            await self._disk.truncate(path, split.consumed)
        self._file = await opened_again(self._disk, path)
        self._snapshot_bytes = end_of(*split.records[1])
        self._after, self._held = checkpoint.commit_ts, {event.commit_ts for event in events}
        log.info(
            "schema_loaded", base_ts=base_ts, size_bytes=len(data), ddls=applied, path=str(path)
        )
        return tracker

    def _path(self, base_ts: Tso) -> Path:
        return self._directory / f"schema-{base_ts:020d}.log"
