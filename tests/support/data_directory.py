"""Writes value logs as a Pump leaves them, without a Pump."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from binlogd.log.record import HEADER_BYTES, RECORD_MAGIC, encode, footer
from binlogd.tso import MAX_TS, Tso
from binlogd.wire.peek import Head, head_and_canonical, peek


def write_log(
    data_dir: Path,
    payloads: Iterable[bytes],
    *,
    shards: int = 4,
    segment_bytes: int = 1 << 20,
) -> None:
    """Files payloads in their order; a transaction's binlogs go to one shard.

    Every segment but a shard's last is sealed.
    """
    logs = [_Log(data_dir / "pump" / f"shard-{shard}" / "value") for shard in range(shards)]
    for payload in payloads:
        start_ts = peek(payload).start_ts
        logs[(start_ts >> 18 ^ start_ts) % shards].append(
            head_and_canonical(payload)[1], segment_bytes
        )
    for log in logs:
        log.close()


class _Log:
    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._fid = 0
        self._max_ts = 0
        self._records: list[bytes] = []
        self._size = 0

    def append(self, payload: bytes, segment_bytes: int) -> None:
        record = encode(payload)
        head = peek(payload)
        self._max_ts = max(self._max_ts, head.start_ts, head.commit_ts)
        self._records.append(record)
        self._size += len(record)
        if self._size > segment_bytes:
            self._records.append(footer(Tso(self._max_ts)))
            self.close()
            self._fid += 1
            self._records, self._size, self._max_ts = [], 0, 0

    def close(self) -> None:
        path = self._directory / f"{self._fid:06d}.vlog"
        path.write_bytes(b"".join(self._records))


def collect_garbage(data_dir: Path, needed_behind: Tso) -> int:
    """Removes the segments that GC would, where binlogs behind a timestamp are needed; how many."""
    ends: dict[int, int] = {}
    heads: dict[Path, list[Head]] = {}
    for path in sorted(data_dir.glob("pump/shard-*/value/*.vlog")):
        heads[path] = list(_heads(path))
        ends.update({head.start_ts: head.commit_ts for head in heads[path] if head.tp})
    removed = 0
    for directory in sorted(data_dir.glob("pump/shard-*/value")):
        gone_ts, paths = 0, sorted(directory.glob("*.vlog"))
        for path in paths[:-1]:
            gone_ts = max(
                gone_ts,
                *(max(head.start_ts, ends.get(head.start_ts, MAX_TS)) for head in heads[path]),
            )
            if gone_ts > needed_behind:
                break
            path.unlink()
            removed += 1
            directory.with_name("value.gone").write_text(f"{gone_ts} {int(path.stem) + 1}\n")
    return removed


def _heads(path: Path) -> Iterator[Head]:
    content, at = path.read_bytes(), 0
    while at + HEADER_BYTES <= len(content):
        magic, length = struct.unpack_from("<IQ", content, at)
        if magic != RECORD_MAGIC:
            return
        yield peek(content[at + HEADER_BYTES : at + HEADER_BYTES + length])
        at += HEADER_BYTES + length
