"""The bytes of logs: records, frames and files of every kind, read as far as they are whole."""

from __future__ import annotations

from contextlib import suppress

from binlogd.archive.catalog import decode_catalog
from binlogd.drainer.files import log as files
from binlogd.drainer.files.checkpoint import Savepoint
from binlogd.errors import ConfigError, Corrupt
from binlogd.log import record
from binlogd.log.drive import Reading, of_bytes
from binlogd.log.scan import scan, survey
from binlogd.pump.route import Routing
from binlogd.relay.frame import (
    Damaged,
    FrameKind,
    FramePlace,
    RelayEntry,
    RelayPos,
    decode_entries,
    encode_entries,
    encode_frame,
    frame_at,
)
from binlogd.tools.row_index import encode_frame as encode_rows
from binlogd.tools.row_index import frames
from binlogd.tso import Tso
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog


def seeds() -> list[bytes]:
    """A log of each kind."""
    payloads = [prewrite_binlog(Tso(5), prewrite_value=b"v" * 9), commit_binlog(Tso(5), Tso(6))]
    entries = encode_entries([RelayEntry(Tso(6), payloads[1], b"{}")])
    rows = encode_rows(0, 90, [6], [("d", "t", ("a",))], [5], [("key", Tso(6))])
    return [
        b"".join(map(record.encode, payloads)),
        b"".join(map(record.encode, payloads)) + record.footer(Tso(6)),
        b"".join(map(files.encode_record, payloads)),
        b"".join(encode_frame(FrameKind.GROUP, RelayPos(0, 0), Tso(6), entries)),
        b"".join(entries),
        rows,
        b'{"format": 1, "cluster_id": 7, "shards": 1, "resolved_ts": 5, "segments": []}',
        b'consistent = true\ncommitTS = 7\n[written]\nfile = "binlog-0"\noffset = 5\n',
        b"4 24\n",
    ]


def run(data: bytes) -> None:
    """As each of them."""
    for framing in (record.FRAMING, files.FRAMING):
        reading = Reading(scan(framing, size=len(data)), of_bytes(data))
        whole = [each for batch in reading.batches() for each in batch]
        surveyed = Reading(survey(framing, size=len(data)), of_bytes(data))
        seen = [each for batch in surveyed.batches() for each in batch]
        assert seen[: len(whole)] == whole
        assert sum(len(payload) for _, payload in seen) <= len(data)
    at = RelayPos(0, 0)
    while at.offset < len(data):
        frame = Reading(frame_at(len(data), at), of_bytes(data)).ended()
        if not isinstance(frame, FramePlace):
            assert isinstance(frame, Damaged) or frame.offset == at.offset
            break
        at = at._replace(offset=frame.end)
    try:
        entries = decode_entries(data)
        assert b"".join(encode_entries(entries)) == data
    except ValueError:
        pass
    for rows, end in frames(memoryview(data)):
        assert end <= len(data)
        rows.commits("key")
    with suppress(Corrupt, ConfigError):
        decode_catalog(data, "file")
    with suppress(ConfigError):
        Savepoint.from_toml(data, "file")
    with suppress(ValueError):
        Routing.from_bytes(data)
