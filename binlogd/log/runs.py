"""Records at many places of a log: neighbours are read in one system call, and cut out of what that
gives. No I/O, made to be compiled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from binlogd.log.pointer import FileId, Spot
from binlogd.log.record import decode, size_of

_GAP_BYTES = 16 << 10  # reading over a gap is cheaper than a second system call
_RUN_BYTES = 4 << 20


class RecordRun:
    """Neighbours in a segment: where they begin, how many bytes they take, and which places they
    are."""

    def __init__(self, begin: int) -> None:
        self.begin = begin
        self.length = 0
        self.indexes: list[int] = []


def runs(places: Sequence[Spot]) -> Iterator[tuple[FileId, list[RecordRun]]]:
    """What to read of which segment, some megabytes at a time or a single record, in order."""
    if (dense := _dense(places)) is not None:
        yield places[0][0], [dense]
        return
    some: list[RecordRun] = []
    last, size, reached = FileId(-1), 0, 0
    for index in sorted(range(len(places)), key=places.__getitem__):
        fid, offset, length = places[index]
        end = offset + size_of(length)
        is_apart = fid != last or offset > reached + _GAP_BYTES
        more = end - offset if is_apart else max(0, end - reached)
        if some and (fid != last or size + more > _RUN_BYTES):
            yield last, some
            some, size, is_apart, more = [], 0, True, end - offset
        if is_apart:
            some.append(RecordRun(offset))
            reached = offset
        last, size, reached = fid, size + more, max(reached, end)
        some[-1].length = reached - some[-1].begin
        some[-1].indexes.append(index)
    if some:
        yield last, some


def _dense(places: Sequence[Spot]) -> RecordRun | None:
    """All of them, where they lie so close together that in any order they are one run."""
    if not places:
        return None
    fid, begin, end = places[0][0], places[0][1], 0
    size = 0
    for each_fid, offset, length in places:
        if each_fid != fid:
            return None
        after = offset + size_of(length)
        begin = min(begin, offset)
        end = max(end, after)
        size += after - offset
    if end - begin > min(size + _GAP_BYTES, _RUN_BYTES):
        return None
    run = RecordRun(begin)
    run.length = end - begin
    run.indexes = list(range(len(places)))
    return run


def cut(
    block: bytes, run: RecordRun, places: Sequence[Spot], payloads: list[bytes]
) -> tuple[int, str] | None:
    """Puts the payloads of a run where its places stand in the list; the offset of the first in the
    log that does not read, and why."""
    wrong: tuple[int, str] | None = None
    begin = run.begin
    for index in run.indexes:
        _, offset, length = places[index]
        payload = decode(block, offset - begin, length=length)
        if isinstance(payload, bytes):
            payloads[index] = payload
        elif wrong is None or offset < wrong[0]:
            wrong = offset, payload
    return wrong
