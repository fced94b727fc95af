"""A group of a relay log: transactions that are durable with one fsync, or not there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import google_crc32c

from binlogd.binlog import in_parts
from binlogd.ports import AppendFile
from binlogd.relay.frame import (
    HEAD,
    FrameKind,
    RelayEntry,
    RelayPos,
    encode_entries,
    encode_frame,
    frame_head,
)

GROUP_BYTES_MAX = 16 << 20
"""Larger appends are several groups, each with its own fsync; one entry is never split."""


def in_groups(entries: Sequence[RelayEntry]) -> Iterator[Sequence[RelayEntry]]:
    """What is at or below the last commit_ts of a log counts as written."""
    sizes = [len(entry.payload) + len(entry.job) for entry in entries]
    return in_parts(entries, sizes, bytes_max=GROUP_BYTES_MAX)


async def append_group(file: AppendFile, at: RelayPos, group: Sequence[RelayEntry]) -> int:
    """Returns when it is durable at its place, which is the end of the file: the bytes of its
    frame. Raises OSError, ValueError for a payload that does not fit."""
    last_ts = group[-1].commit_ts
    if all(isinstance(entry.payload, bytes) for entry in group):
        frame = encode_frame(FrameKind.GROUP, at, last_ts, encode_entries(group))
        await file.append(frame, sync=True)
        return sum(map(len, frame))
    checksum = size = 0  # a payload that lies on the disk is read twice, and never held
    for piece in encode_entries(group):
        checksum, size = google_crc32c.extend(checksum, piece), size + len(piece)
        await asyncio.sleep(0)
    await file.append([frame_head(FrameKind.GROUP, at, last_ts, checksum, size)], sync=False)
    for piece in encode_entries(group):
        await file.append([piece], sync=False)
    await file.append([], sync=True)
    return HEAD.size + size
