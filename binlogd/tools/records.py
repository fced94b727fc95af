"""The records of binlog files as they stand there, one after the other: for a look at the bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from binlogd.binlog import BinlogType
from binlogd.drainer.files.log import records_of
from binlogd.drainer.files.tail import head_at
from binlogd.drainer.messages.secondary import is_secondary
from binlogd.errors import CorruptRecord, MalformedBinlog
from binlogd.relay.frame import FrameKind
from binlogd.relay.reader import entries_of
from binlogd.tools.named_files import relay_frames
from binlogd.tools.pump_log import shard_records
from binlogd.tools.reading import Source, SourceKind
from binlogd.tools.transaction import FilePosition, Meter
from binlogd.tso import NO_TS, Tso
from binlogd.wire.peek import peek


class RecordLine(NamedTuple):
    """One record: its place and size, what it is, and its timestamps (NO_TS for none)."""

    place: FilePosition
    size_bytes: int
    kind: str
    start_ts: Tso
    commit_ts: Tso
    detail: str = ""

    def document(self) -> dict[str, Any]:
        """For machines."""
        place = {"path": str(self.place.path), "offset": self.place.offset}
        return {name: each for name, each in self._asdict().items() if name != "place"} | place


def records(source: Source, meter: Meter) -> Iterator[RecordLine]:
    """The records of a source, shard after shard, in the order of writing.

    Raises CorruptRecord or CorruptRelay at the first bytes that do not verify, OSError.
    """
    if source.kind is SourceKind.PUMP:
        return _of_pump(source, meter)
    return _of_relay(source, meter) if source.kind is SourceKind.RELAY else _of_files(source, meter)


def records_of_transaction(
    sources: Sequence[Source], ts: Tso, meter: Meter
) -> Iterator[RecordLine]:
    """The records that carry a timestamp: of a transaction without a commit, its prewrite and
    rollback. Only a Pump's log has such. Raises as `records`."""
    for source in sources:
        if source.kind is SourceKind.PUMP:
            for line in _of_pump(source, meter):
                if ts in (line.start_ts, line.commit_ts):
                    yield line


def _of_pump(source: Source, meter: Meter) -> Iterator[RecordLine]:
    for shard in source.shards:
        for place, payload in shard_records(shard, meter):
            try:
                head = peek(payload)
            except MalformedBinlog as error:
                raise CorruptRecord(*place, f"the payload is no binlog: {error}") from error
            kind = BinlogType(head.tp).name.lower()
            if head.tp == BinlogType.ROLLBACK and head.start_ts == head.commit_ts:
                kind = "fake"
            detail = f"DDL job {head.ddl_job_id}" if head.ddl_job_id > 0 else ""
            start_ts, commit_ts = Tso(head.start_ts), Tso(head.commit_ts)
            yield RecordLine(place, len(payload), kind, start_ts, commit_ts, detail)


def _of_relay(source: Source, meter: Meter) -> Iterator[RecordLine]:
    meter.total_bytes += sum(file.stat().st_size for file in source.files)
    for file in source.files:
        for frame, body in relay_frames(file, is_last=file == source.newest):
            size_bytes = frame.end - frame.at
            meter.read_bytes += size_bytes
            detail = f"schema of {len(body)} bytes"
            if frame.kind is FrameKind.GROUP:
                detail = f"{len(entries_of(file, frame.at, body))} transactions"
            name = frame.kind.name.lower()
            yield RecordLine(
                FilePosition(file, frame.at), size_bytes, name, NO_TS, frame.commit_ts, detail
            )


def _of_files(source: Source, meter: Meter) -> Iterator[RecordLine]:
    meter.total_bytes += sum(file.stat().st_size for file in source.files)
    for file in source.files:
        for record in records_of(file, is_last=file == source.newest):
            size_bytes = record.end - record.offset
            meter.read_bytes += size_bytes
            head = head_at(file, record)
            kind = "ddl" if head.is_ddl else "rows"
            detail = "secondary" if is_secondary(record.payload) else "pb"
            place = FilePosition(file, record.offset)
            yield RecordLine(place, size_bytes, kind, NO_TS, head.commit_ts, detail)
