"""Reading a relay log back, from the file that covers a checkpoint to its end.

Invariant. The entries of a chain come out once, in order and without a gap, up to the last group
that was whole. Why it holds: files of a chain are consecutive, each head names the last commit_ts
before it, and a torn frame is accepted at the end of the last file only.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import msgspec

from binlogd.errors import ConfigError, CorruptRelay
from binlogd.log.drive import DiskReading, Reading, of_bytes
from binlogd.log.scan import Steps
from binlogd.ports import Disk
from binlogd.relay.frame import (
    Damaged,
    FrameKind,
    FramePlace,
    RelayEntry,
    RelayFile,
    RelayPos,
    Torn,
    Whole,
    commit_tss_in,
    decode_entries,
    file_name,
    frame_at,
    is_followed,
    suffix_of,
)
from binlogd.tso import Tso


class Relay(msgspec.Struct, frozen=True):
    """A relay log from one file on.

    `snapshot` is the schema at `base_ts`; `batches` yields every entry above `base_ts`, also those
    at or below the checkpoint, because their DDL moves the schema.
    """

    snapshot: bytes
    base_ts: Tso
    batches: AsyncIterator[list[RelayEntry]]


async def read_relay(disk: Disk, directory: Path, after: Tso) -> Relay:
    """The newest chain from the last file that begins at or before `after`. Raises ConfigError when
    the log does not reach back to `after`, CorruptRelay for bytes that do not verify (while
    reading, too)."""
    files, _ = await list_files(disk, directory)
    chain = chain_of(files)
    covering = [number for number, file in enumerate(chain) if file.base_ts <= after]
    if not covering:
        begins = f"begins behind commit_ts {chain[0].base_ts}" if chain else "is empty"
        raise ConfigError(
            f"the relay log in {directory} {begins}, the checkpoint is {after}: what lies between"
            " cannot be restored from it"
        )
    files = list(chain[covering[-1] :])
    path, is_last = directory / file_name(files[0].suffix), len(files) == 1
    head = await anext(spans(disk, path, files[0].size_bytes, is_last=is_last))
    return Relay(await _body(disk, path, head), head.commit_ts, _batches(disk, directory, files))


async def _batches(
    disk: Disk, directory: Path, files: Sequence[RelayFile]
) -> AsyncIterator[list[RelayEntry]]:
    last_ts = files[0].base_ts
    for file in files:
        path = directory / file_name(file.suffix)
        if file.base_ts != last_ts:
            raise CorruptRelay(path, 0, f"it continues {file.base_ts}, the log ended at {last_ts}")
        async for span in spans(disk, path, file.size_bytes, is_last=file is files[-1]):
            if span.kind is FrameKind.GROUP:
                yield entries_of(path, span.at, await _body(disk, path, span))
                last_ts = span.commit_ts


def entries_of(path: Path, offset: int, body: bytes) -> list[RelayEntry]:
    """The entries of a group that stands at an offset. Raises CorruptRelay."""
    try:
        return decode_entries(body)
    except ValueError as error:
        raise CorruptRelay(path, offset, str(error)) from error


def scan(path: Path, data: Whole, suffix: int, *, is_last: bool) -> Iterator[FramePlace]:
    """The frames of one file; ends where the last file is torn. Raises CorruptRelay."""
    at = RelayPos(suffix, 0)
    while at.offset < len(data):
        steps = _frame(path, len(data), at, is_last=is_last, comes_again=False)
        span = Reading(steps, of_bytes(data)).ended()
        if span is None:
            return
        yield span
        at = at._replace(offset=span.end)


async def spans(
    disk: Disk, path: Path, size: int, *, is_last: bool, comes_again: bool = False
) -> AsyncIterator[FramePlace]:
    """The same of a file of a log, which has `size` bytes; no frame is held.

    With `comes_again` a last frame of any bytes is torn: after a loss of power nobody knows what
    stands where nothing was synced, and what it may have held is sent again.
    """
    suffix = suffix_of(path.name)
    assert suffix is not None, "a file of a log"
    at = RelayPos(suffix, 0)
    while at.offset < size:
        steps = _frame(path, size, at, is_last=is_last, comes_again=comes_again)
        span = await DiskReading(disk, path, steps).ended()
        if span is None:
            return
        yield span
        at = at._replace(offset=span.end)


def _frame(
    path: Path, size: int, at: RelayPos, *, is_last: bool, comes_again: bool
) -> Steps[FramePlace | None]:
    """The frame at a place; None where the file is torn. Raises CorruptRelay."""
    found = yield from frame_at(size, at)
    if isinstance(found, Torn) and is_last:
        return None
    is_last_of_all = is_last and comes_again
    if isinstance(found, Damaged) and is_last_of_all and not (yield from is_followed(size, at)):
        return None
    if isinstance(found, Torn | Damaged):
        raise CorruptRelay(path, found.offset, f"{found.reason}; {_REMEDY}")
    if (found.kind is FrameKind.GROUP) != (at.offset > 0):
        raise CorruptRelay(path, at.offset, f"a frame of kind {found.kind.name} stands here")
    return found


_REMEDY = (
    "while the upstream is there, the relay directory can be emptied: all that follows the"
    " checkpoint comes again"
)


async def list_files(
    disk: Disk, directory: Path, *, comes_again: bool = False
) -> tuple[list[RelayFile], int | None]:
    """The files of a log in order, by their heads, and the number of a newest file without one.

    Such a file was being begun when the process died; nothing stands in it. `comes_again` as for
    `spans`. Raises CorruptRelay for a missing file, and for an older file without a head.
    """
    found = sorted(
        (suffix, size_bytes)
        for name, size_bytes in (await disk.sizes(directory)).items()
        if (suffix := suffix_of(name)) is not None
    )
    files: list[RelayFile] = []
    for number, (suffix, size_bytes) in enumerate(found):
        path = directory / file_name(suffix)
        if suffix != found[0][0] + number:
            raise CorruptRelay(path, 0, f"the file before it, {file_name(suffix - 1)}, is missing")
        is_last = number + 1 == len(found)
        frames = spans(disk, path, size_bytes, is_last=is_last, comes_again=comes_again)
        head = await anext(frames, None)
        if head is None and is_last:
            return files, suffix
        if head is None:
            raise CorruptRelay(path, 0, "the file has no head, and is not the last one")
        is_start = head.kind is FrameKind.START
        files.append(RelayFile(suffix, head.commit_ts, is_start, size_bytes))
    return files, None


def chain_of(files: Sequence[RelayFile]) -> Sequence[RelayFile]:
    """The newest run of files that continue each other; its first ones may be collected."""
    starts = [number for number, file in enumerate(files) if file.starts_chain]
    return files[starts[-1] :] if starts else files


async def commit_tss_of(disk: Disk, path: Path, span: FramePlace) -> list[int]:
    """Those of the entries of a group, of which no more is read than the heads."""
    return await DiskReading(disk, path, commit_tss_in(span.begin, span.end)).ended()


async def _body(disk: Disk, path: Path, span: FramePlace) -> bytes:
    (body,) = await disk.read(path, [(span.begin, span.end - span.begin)])
    return body
