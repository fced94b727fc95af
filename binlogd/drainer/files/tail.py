"""Where a file-sink log goes on after a restart: behind its last transaction that is whole.

What the savepoint covers was durable and is not read again, only its size is checked. Behind it,
everything comes again from upstream, so whatever does not verify there is dropped. Without a
place in the savepoint (it is the original's, or there is none) the newest file is read as a whole,
and only a record that is torn (`log.scan`) may be dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from binlogd.drainer.files.checkpoint import DurableUpTo, Savepoint
from binlogd.drainer.files.log import (
    COMPRESSED_SUFFIX,
    FRAMING,
    LogFile,
    Record,
    log_files,
    records_in,
)
from binlogd.drainer.messages.pb import PbHead, head_of
from binlogd.errors import Corrupt, CorruptRelay
from binlogd.log.drive import DiskReading
from binlogd.log.scan import Ending, scan
from binlogd.ports import Disk
from binlogd.tso import NO_TS, Tso

WINDOW_BYTES = 8 << 20


class FileTail(msgspec.Struct, frozen=True):
    """The place to write on at; `file` is None where a new one must be begun. `commit_ts` is the
    last transaction before it, as far as is known."""

    file: LogFile | None
    next_number: int
    offset: int
    dropped_bytes: int
    commit_ts: Tso


class _Mark(msgspec.Struct, frozen=True):
    """A place inside a file and the last commit_ts before it."""

    offset: int
    commit_ts: Tso


async def find_tail(disk: Disk, directory: Path, savepoint: Savepoint | None) -> FileTail:
    """Verifies what the savepoint does not cover. Raises CorruptRelay, OSError; changes nothing.

    A DDL at the end that the savepoint does not cover counts as not whole: it may be one of several
    statements of its transaction.
    """
    sizes = await disk.sizes(directory)
    files = log_files(list(sizes))
    written = savepoint.written if savepoint else None
    saved_ts = savepoint.checkpoint.commit_ts if savepoint else NO_TS
    first, mark = _start(directory, files, sizes, written)
    if not files:
        number = log_files([written.file])[0].number + 1 if written else 0
        return FileTail(None, number, 0, 0, mark.commit_ts)
    if files[-1].name.endswith(
        COMPRESSED_SUFFIX
    ):  # copied here from elsewhere: nothing to append to
        return FileTail(None, files[-1].number + 1, 0, 0, mark.commit_ts)
    for file in files[first:]:
        path, size_bytes = directory / file.name, sizes[file.name]
        before, ends_in_ddl = mark, False
        steps = scan(FRAMING, start=mark.offset, size=size_bytes, chunk_bytes=WINDOW_BYTES)
        reading = DiskReading(disk, path, steps)
        async for batch in reading.batches():
            for record in records_in([batch]):
                head = head_at(path, record)
                if head.commit_ts != mark.commit_ts:
                    before = mark
                mark = _Mark(record.end, head.commit_ts)
                ends_in_ddl = head.is_ddl and head.commit_ts > saved_ts
        end = reading.found
        may_be_cut = file is files[-1] and (written or end.ending is Ending.TORN)
        if end.ending is not Ending.WHOLE and not may_be_cut:
            raise CorruptRelay(path, end.offset, end.reason)
        if file is not files[-1]:
            mark = _Mark(0, mark.commit_ts)
    if ends_in_ddl:
        mark = before
    newest, size_bytes = files[-1], sizes[files[-1].name]
    return FileTail(
        newest, newest.number + 1, mark.offset, size_bytes - mark.offset, mark.commit_ts
    )


def _start(
    directory: Path, files: Sequence[LogFile], sizes: dict[str, int], written: DurableUpTo | None
) -> tuple[int, _Mark]:
    """The first file to verify, and from where on."""
    if written is None:
        filled = [position for position, file in enumerate(files) if sizes[file.name]]
        return (filled[-1] if filled else 0), _Mark(0, NO_TS)
    for position, file in enumerate(files):
        if file.name == written.file:
            if sizes[file.name] < written.offset:
                reason = f"the file ends here, but was durable up to {written.offset}"
                raise CorruptRelay(directory / file.name, sizes[file.name], reason)
            return position, _Mark(written.offset, written.commit_ts)
    if files and files[-1].name < written.file:
        raise CorruptRelay(directory / written.file, 0, "the newest file of the log is missing")
    return 0, _Mark(0, written.commit_ts)


def head_at(path: Path, record: Record) -> PbHead:
    """What a record says of itself. Raises CorruptRelay."""
    try:
        return head_of(record.payload)
    except Corrupt as error:
        raise CorruptRelay(path, record.offset, str(error)) from error
