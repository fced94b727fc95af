"""Writes value logs as a Pump leaves them, without a Pump."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from binlogd.record import encode, footer
from binlogd.tso import Tso
from binlogd.wire.peek import canonical, peek


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
        logs[(start_ts >> 18 ^ start_ts) % shards].append(canonical(payload), segment_bytes)
    for log in logs:
        log.close()


class _Log:
    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
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
