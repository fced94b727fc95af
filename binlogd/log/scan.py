"""The records of a log, and what stands where they end: one scanner, and one judge, for every
reader of every log.

A record's length is under no checksum, so that a flipped bit in it looks like an append that was
cut short. Invariant. `Ending.TORN` is said of bytes alone that hold no whole record which was ever
acknowledged. Why it holds: an append is cut to a prefix of itself, so that behind its own record
there is nothing. A payload that fits its checksum before the file ends was whole; whole records
that lead from behind it exactly to the end were appended later; and a footer is written behind
whole records only. A payload may hold the bytes of whole records, so that one alone tells nothing.

A log that is used skips nothing: a `scan` ends at the first bytes that are no record. Who checks or
adopts a log goes on behind them by a `survey`, which remembers what it could not read.

Nothing here reads: each is a generator that asks for (offset, size) and is sent what the file has
of that, and yields batches of records; `drive` runs them. docs/decisions/0012.
Source: tidb-binlog pump/storage/log.go, scan and seekToNextRecord (which always goes on, and only
logs how many bytes it passed over).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from enum import Enum, auto
from typing import NamedTuple, TypeVar

import google_crc32c
import msgspec

from binlogd.log.stretch import RECORD_BYTES_MIN, whole_records
from binlogd.log.stretch import Batch as Batch

T = TypeVar("T")
Ask = tuple[int, int]
"""Offset and size of what is to be read; less comes only at the end of the file."""
Steps = Generator[Ask | Batch, bytes, T]
"""What reads a file; it is sent bytes for each `Ask`, and anything for a `Batch`."""
Outlining = Callable[[bytes, bytes, int], bytes | None]
"""What stands for a payload, by its first bytes, its last ones and its length."""
CHUNK_BYTES = 4 << 20
_LARGE_BYTES = 2 * CHUNK_BYTES
_TAIL_BYTES = 64
_HEAD = struct.Struct("<4sQ")
_CHECKSUM = struct.Struct("<I")


class Split(NamedTuple):
    """What a stretch of a log holds.

    `records` are (offset in the file, payload). What follows `consumed` is either wrong, as
    `fault` says, or the beginning of a record that takes `needs` bytes in all (those of a head,
    as long as not even that is whole). The caller compares `needs` with what the file still has
    before it reads them.
    """

    records: Batch
    consumed: int
    needs: int
    fault: str | None


class Framing(msgspec.Struct, frozen=True):
    """How the records of a log lie in its files: `magic · length u64`, payload, CRC-32C of it.

    The checksum ends the head of `head_bytes`, or follows the payload in `trailer_bytes`. A log
    whose files are sealed says what the `footer_bytes` of a footer look like.
    """

    magic: bytes
    head_bytes: int
    trailer_bytes: int
    payload_bytes_max: int
    footer_bytes: int = 0
    is_footer: Callable[[bytes], bool] = lambda _: False

    def needs(self, head: bytes) -> int | None:
        """Bytes of the record that begins so, as it says itself; None if none begins so."""
        if len(head) < self.head_bytes:
            return None
        magic, length = _HEAD.unpack_from(head)
        return self.head_bytes + int(length) + self.trailer_bytes if magic == self.magic else None

    def expects(self, head: bytes, before_end: bytes) -> int:
        """The checksum, from a whole head, and from the last bytes of the record."""
        found = before_end if self.trailer_bytes else head[self.head_bytes - 4 : self.head_bytes]
        (checksum,) = _CHECKSUM.unpack(found[-4:])
        return int(checksum)

    def is_whole(self, record: bytes) -> bool:
        """Whether these bytes are a record whose length and checksum fit."""
        if self.needs(record) != len(record):
            return False
        payload = record[self.head_bytes : len(record) - self.trailer_bytes]
        expected = self.expects(record, record[len(record) - self.trailer_bytes :])
        return int(google_crc32c.value(payload)) == expected

    def split(self, stretch: bytes, at: int = 0) -> Split:
        """Takes a stretch apart that begins with a record, `at` bytes into its file."""
        records, consumed = whole_records(
            stretch,
            at,
            int.from_bytes(self.magic, "little"),
            self.head_bytes,
            self.trailer_bytes,
            self.payload_bytes_max,
        )
        left = len(stretch) - consumed
        head = stretch[consumed : consumed + self.head_bytes]
        fault, needs = self.fault(head), self.needs(head) or 0
        if left < RECORD_BYTES_MIN:
            return Split(records, consumed, RECORD_BYTES_MIN if left else 0, fault)
        if fault is not None or needs > left:
            return Split(records, consumed, 0 if fault else needs, fault)
        begin, end = consumed + self.head_bytes, consumed + needs
        found = google_crc32c.value(stretch[begin : end - self.trailer_bytes])
        expected = self.expects(head, stretch[end - self.trailer_bytes : end])
        return Split(records, consumed, 0, mismatch(int(found), expected))

    def fault(self, head: bytes) -> str | None:
        """What is wrong with the first bytes of a record: nothing, as long as it may become one."""
        magic = head[:4]
        if not self.magic.startswith(magic):
            shown = f"{int.from_bytes(magic, 'little'):08x}" if len(magic) == 4 else magic.hex()
            return f"wrong magic {shown}"
        needs = self.needs(head)
        length = 0 if needs is None else needs - self.head_bytes - self.trailer_bytes
        if length > self.payload_bytes_max:
            return f"length {length} is above the record limit of {self.payload_bytes_max} bytes"
        return None


def mismatch(found: int, expected: int) -> str:
    """What is wrong with a payload whose checksum is not the header's."""
    return f"checksum mismatch: the payload has {found:08x}, the header says {expected:08x}"


class Ending(Enum):
    """What stands where a reader looked for a record."""

    WHOLE = auto()
    TORN = auto()
    DAMAGED = auto()


class End(NamedTuple):
    """Where whole records end, what stands there, and why that is no record.

    `is_short`: it announces more bytes than the file has. `footer` are the bytes of the footer that
    seals the file; none if it is not sealed.
    """

    offset: int
    ending: Ending
    reason: str = ""
    is_short: bool = False
    footer: bytes = b""

    def ends_well(self, *, is_last: bool) -> bool:
        """Whether a log may end so; only its last file may be torn."""
        return self.ending is Ending.WHOLE or (is_last and self.ending is Ending.TORN)


def scan(
    framing: Framing,
    *,
    start: int = 0,
    size: int | None,
    chunk_bytes: int = 0,
    outline: Outlining | None = None,
) -> Steps[End]:
    """The records from `start` on, which begins one, some megabytes at a time, and what stands
    where they end. Torn bytes may only end the last file of a log; its reader knows which that is.

    `size` None: up to the end of the file, wherever that is; it is judged by no bytes behind it, so
    that what is short is damaged. With `outline`, a large record comes as what that makes of it.
    """
    end = yield from _walk(framing, start, size, chunk_bytes, outline)
    if not end.is_short or size is None:
        return end
    judged = yield from judge(framing, at=end.offset, size=size)
    return end if judged.ending is Ending.WHOLE else judged  # it changes while it is read


def _walk(
    framing: Framing,
    at: int,
    size: int | None,
    chunk_bytes: int = 0,
    outline: Outlining | None = None,
) -> Steps[End]:
    """`scan`, before what is short is judged."""
    least = want = chunk_bytes or CHUNK_BYTES
    while size is None or at < size:  # ends: `at` grows, or something is wrong there
        if size is not None and size - at == framing.footer_bytes:
            footer = yield at, framing.footer_bytes
            if framing.is_footer(footer):
                return End(at, Ending.WHOLE, footer=footer)
        take = want if size is None else min(size - at, want)
        stretch = yield at, take
        found = framing.split(stretch, at)
        if found.records:
            yield found.records
        is_news = size is None and len(stretch) < take
        if is_news:
            size = at + len(stretch)
        at += found.consumed
        if size is not None and size - at == framing.footer_bytes and (found.consumed or is_news):
            continue  # a footer is shorter than a head: look for it first
        if (end := _wrong(found, at, size, is_cut=len(stretch) < take)) is not None:
            return end
        want = max(least, found.needs)
        if outline is not None and want > _LARGE_BYTES:
            behind = yield from _outlined(framing, at, want, outline)
            if isinstance(behind, End):
                return behind
            at, want = behind, least if behind > at else want
    return End(at, Ending.WHOLE)


def _wrong(found: Split, at: int, size: int | None, *, is_cut: bool) -> End | None:
    """The end that a stretch tells of, if it does."""
    if found.fault is not None:
        return End(at, Ending.DAMAGED, found.fault)
    if size is not None and (at + found.needs > size or (is_cut and at < size)):
        reason = f"{found.needs} bytes are announced, {size - at} are there"
        return End(at, Ending.DAMAGED, reason, is_short=True)
    return None


def _outlined(framing: Framing, at: int, needs: int, outline: Outlining) -> Steps[int | End]:
    """Yields the outline of a large record, if there is one, and returns what follows that; or what
    is wrong with it: it is read once, and not held."""
    head = yield at, framing.head_bytes
    begin, end = at + framing.head_bytes, at + needs - framing.trailer_bytes
    checksum, first, last = 0, b"", b""
    for piece_at in range(begin, end, CHUNK_BYTES):
        piece = yield piece_at, min(CHUNK_BYTES, end - piece_at)
        checksum = int(google_crc32c.extend(checksum, piece))
        first, last = first or piece, last[-_TAIL_BYTES:] + piece[-_TAIL_BYTES:]
    trailer = (yield end, framing.trailer_bytes) if framing.trailer_bytes else b""
    expected = framing.expects(head, trailer)
    if checksum != expected:
        return End(at, Ending.DAMAGED, mismatch(checksum, expected))
    made = outline(first, last, end - begin)
    if made is None:
        return at
    yield [(at, made)]
    return at + needs


def judge(framing: Framing, *, at: int, size: int) -> Steps[End]:
    """What stands at `at`, before `size`, in a file whose records are whole up to there."""
    head = (yield at, framing.head_bytes)[: size - at]
    fault, needs = framing.fault(head), framing.needs(head)
    if fault is not None:
        return End(at, Ending.DAMAGED, fault)
    if needs is None or at + needs > size:
        reason = f"{needs or framing.head_bytes} bytes are announced, {size - at} are there"
        but = yield from _contradicted(framing, at=at, size=size)
        if but:
            return End(at, Ending.DAMAGED, f"{reason}, {but}", is_short=True)
        return End(at, Ending.TORN, reason, is_short=True)
    whole = framing.is_whole((yield at, needs))
    return End(at, Ending.WHOLE) if whole else End(at, Ending.DAMAGED, "checksum mismatch")


def _contradicted(framing: Framing, *, at: int, size: int) -> Steps[str]:
    """What shows that a record with too few bytes was whole once; nothing where it is torn."""
    if (yield from _ends_in_footer(framing, size)):
        return "though a footer ends the file"
    fits = yield from _fits(framing, at=at, upto=size, size=size)
    if fits is not None:
        return f"but its payload ends at offset {fits}"
    if (yield from _leads_to_the_end(framing, at, size)):
        return "but whole records follow it to the end"
    return ""


class Unreadable(NamedTuple):
    """A stretch of a file, from `begin` to before `end`, that is no record.

    `is_short`: a record that announces more bytes than follow up to `end`, as an append leaves it
    that failed half-way and was never acknowledged. `is_torn`: it is the last of the file.
    """

    begin: int
    end: int
    fault: str
    is_short: bool
    is_torn: bool = False


class Surveyed(NamedTuple):
    """What a survey passed over, and the footer's bytes, none if there is no footer."""

    unreadable: list[Unreadable]
    footer: bytes


def survey(framing: Framing, *, size: int, torn_from: int | None = None) -> Steps[Surveyed]:
    """The records of a whole file, also those behind bytes that are none.

    Nothing is looked for behind what is torn at `torn_from` or later, where nothing was
    acknowledged and its writer never goes on behind a failed append.
    """
    unreadable: list[Unreadable] = []
    begin: int | None = 0
    while begin is not None:  # ends: every turn begins behind the one before, or at a fault
        found = yield from _walk(framing, begin, size)
        if found.ending is Ending.WHOLE:
            return Surveyed(unreadable, found.footer)
        at = found.offset
        if found.is_short and torn_from is not None and at >= torn_from:
            judged = yield from judge(framing, at=at, size=size)
            if judged.ending is Ending.TORN:
                unreadable.append(Unreadable(at, size, found.reason, True, is_torn=True))
                break
        head = yield at, framing.head_bytes
        begin = yield from resumes(framing, fault=at, size=size)
        end = size if begin is None else begin
        needs = framing.needs(head)
        is_short = framing.fault(head) is None if needs is None else at + needs > end
        unreadable.append(Unreadable(at, end, found.reason, is_short))
    return Surveyed(unreadable, b"")


def resumes(framing: Framing, *, fault: int, size: int) -> Steps[int | None]:
    """Where the next whole record, or the footer, begins behind bytes that are no record; None if
    nothing follows.

    A record whose payload fits its checksum ends with it, and one that tells its length well ends
    there, whatever else is wrong with it: what its payload holds is none of the log's records, even
    if it looks like one.
    """
    needs = framing.needs((yield fault, framing.head_bytes))
    if needs is not None:
        after = fault + needs
        fits = yield from _fits(framing, at=fault, upto=min(after, size), size=size)
        for end in (after,) if fits is None else (fits, after):
            if end == size:
                return None
            if (yield from _is_record(framing, end, size)):
                return end
    begin = fault + 1
    while size - begin >= framing.head_bytes:  # ends: `begin` grows by a chunk each turn
        stretch = yield begin, CHUNK_BYTES
        found = stretch.find(framing.magic)
        while found >= 0:
            if (yield from _is_record(framing, begin + found, size)):
                return begin + found
            found = stretch.find(framing.magic, found + 1)
        begin += CHUNK_BYTES - 3  # a magic may lie across the border
    if size - fault > framing.footer_bytes and (yield from _ends_in_footer(framing, size)):
        return size - framing.footer_bytes
    return None


def _fits(framing: Framing, *, at: int, upto: int, size: int) -> Steps[int | None]:
    """Where, up to `upto`, the record at `at` ends by the checksum of its payload: before a magic,
    the footer or the end. None if nowhere: then the payload itself is damaged or unfinished."""
    head, trailer = (yield at, framing.head_bytes), framing.trailer_bytes
    if framing.needs(head) is None:
        return None
    begin, checksum = at + framing.head_bytes, 0  # up to `begin`
    while begin + trailer <= upto:  # ends: `begin` grows by a chunk each turn
        stretch = yield begin, CHUNK_BYTES + trailer + 3
        ends = (end - begin for end in (size - framing.footer_bytes, size))
        stops = {end for end in ends if trailer <= end <= CHUNK_BYTES + trailer}
        stop = stretch.find(framing.magic, trailer)
        while 0 <= stop < CHUNK_BYTES + trailer:
            stops.add(stop)
            stop = stretch.find(framing.magic, stop + 1)
        done = 0
        for stop in sorted(each for each in stops if begin + each <= upto):
            checksum = int(google_crc32c.extend(checksum, stretch[done : stop - trailer]))
            done = stop - trailer
            if checksum == framing.expects(head, stretch[done:stop]):
                return begin + stop
        checksum = int(google_crc32c.extend(checksum, stretch[done:CHUNK_BYTES]))
        begin += CHUNK_BYTES
    return None


def _leads_to_the_end(framing: Framing, at: int, size: int) -> Steps[bool]:
    begin = yield from resumes(framing, fault=at, size=size)
    while begin is not None and begin < size:  # ends: every turn begins behind the one before
        end = yield from _walked(framing, begin, size)
        if end == size:
            return True
        begin = yield from resumes(framing, fault=end, size=size)
    return False


def _walked(framing: Framing, begin: int, size: int) -> Steps[int]:
    """How far whole records go."""
    steps = _walk(framing, begin, size)
    try:
        step = next(steps)
        while True:  # ends with the walk
            step = steps.send(b"" if isinstance(step, list) else (yield step))
    except StopIteration as done:
        end: End = done.value
        return end.offset


def _is_record(framing: Framing, offset: int, size: int) -> Steps[bool]:
    """Whether a whole record with the right checksum begins here, or the footer."""
    if framing.footer_bytes and size - offset == framing.footer_bytes:
        return (yield from _ends_in_footer(framing, size))
    if size - offset < framing.head_bytes:
        return False
    needs = framing.needs((yield offset, framing.head_bytes))
    if needs is None or offset + needs > size:
        return False
    return framing.is_whole((yield offset, needs))


def _ends_in_footer(framing: Framing, size: int) -> Steps[bool]:
    if not framing.footer_bytes or size < framing.footer_bytes:
        return False
    return framing.is_footer((yield size - framing.footer_bytes, framing.footer_bytes))
