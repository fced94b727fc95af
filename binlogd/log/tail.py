"""Whether the end of a log is torn, or damaged: one judgement for every reader of every log.

A record's length is under no checksum, so that a flipped bit in it looks like an append that was
cut short. Invariant. `Ending.TORN` is said of bytes alone that hold no whole record which was ever
acknowledged. Why it holds: an append is cut to a prefix of itself, so that behind its own record
there is nothing. A payload that fits its checksum before the file ends was whole; whole records
that lead from behind it exactly to the end were appended later; and a footer is written behind
whole records only. A payload may hold the bytes of whole records, so that one alone tells nothing.

Nothing here reads: each judgement is a generator that asks for (offset, size) and is sent what the
file has of that; `answered` and `awaited` run one. docs/decisions/0012.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from enum import Enum, auto
from typing import BinaryIO, NamedTuple, TypeVar

import google_crc32c

T = TypeVar("T")
Asked = Generator[tuple[int, int], bytes, T]
CHUNK_BYTES = 4 << 20
_HEAD = struct.Struct("<4sQ")
_CHECKSUM = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Framing:
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


class Ending(Enum):
    """What stands where a reader looked for a record."""

    WHOLE = auto()
    TORN = auto()
    DAMAGED = auto()


class Judged(NamedTuple):
    """What stands there, and why that is no whole record."""

    ending: Ending
    reason: str


def answered(asked: Asked[T], read: Callable[[int, int], bytes]) -> T:
    """Runs a judgement by a function that gives `size` bytes at an offset, less only at the end."""
    try:
        wanted = next(asked)
        while True:  # ends with the judgement
            wanted = asked.send(read(*wanted))
    except StopIteration as done:
        found: T = done.value
        return found


async def awaited(asked: Asked[T], read: Callable[[int, int], Awaitable[bytes]]) -> T:
    """`answered` for who has to wait for bytes."""
    try:
        wanted = next(asked)
        while True:  # ends with the judgement
            wanted = asked.send(await read(*wanted))
    except StopIteration as done:
        found: T = done.value
        return found


def judged_in(stream: BinaryIO, framing: Framing, *, at: int, size: int) -> Judged:
    """`judge` of an open file. Raises OSError."""

    def read(offset: int, length: int) -> bytes:
        stream.seek(offset)
        return stream.read(length)

    return answered(judge(framing, at=at, size=size), read)


def judge(framing: Framing, *, at: int, size: int) -> Asked[Judged]:
    """What stands at `at`, before `size`, in a file whose records are whole up to there.

    Torn bytes may only end the last file of a log; its reader knows which that is.
    """
    head = (yield at, framing.head_bytes)[: size - at]
    if not framing.magic.startswith(head[:4]):
        return Judged(Ending.DAMAGED, f"wrong magic {_shown(head[:4])}")
    needs = framing.needs(head)
    length = 0 if needs is None else needs - framing.head_bytes - framing.trailer_bytes
    if length > framing.payload_bytes_max:
        reason = f"length {length} is above the record limit of {framing.payload_bytes_max} bytes"
        return Judged(Ending.DAMAGED, reason)
    if needs is None or at + needs > size:
        reason = f"{needs or framing.head_bytes} bytes are announced, {size - at} are there"
        but = yield from _contradicted(framing, at=at, size=size)
        return Judged(Ending.DAMAGED, f"{reason}, {but}") if but else Judged(Ending.TORN, reason)
    whole = framing.is_whole((yield at, needs))
    return Judged(Ending.WHOLE, "") if whole else Judged(Ending.DAMAGED, "checksum mismatch")


def _contradicted(framing: Framing, *, at: int, size: int) -> Asked[str]:
    """What shows that a record with too few bytes was whole once; nothing where it is torn."""
    if (yield from _ends_in_footer(framing, size)):
        return "though a footer ends the file"
    fits = yield from _fits(framing, at=at, upto=size, size=size)
    if fits is not None:
        return f"but its payload ends at offset {fits}"
    if (yield from _leads_to_the_end(framing, at, size)):
        return "but whole records follow it to the end"
    return ""


def resumes(framing: Framing, *, fault: int, size: int) -> Asked[int | None]:
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


def _fits(framing: Framing, *, at: int, upto: int, size: int) -> Asked[int | None]:
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


def _leads_to_the_end(framing: Framing, at: int, size: int) -> Asked[bool]:
    begin = yield from resumes(framing, fault=at, size=size)
    while begin is not None and begin < size:  # ends: every turn begins behind the one before
        end = yield from _walked(framing, begin, size)
        if end == size:
            return True
        begin = yield from resumes(framing, fault=end, size=size)
    return False


def _walked(framing: Framing, begin: int, size: int) -> Asked[int]:
    """How far whole records go."""
    stretch, start = b"", begin
    while begin < size:  # ends: `begin` grows, or what is there is no record
        left = stretch[begin - start :]
        needs = framing.needs(left[: framing.head_bytes])
        if needs is None or needs > len(left):
            start = begin
            left = stretch = (yield begin, max(CHUNK_BYTES, needs or 0))[: size - begin]
            needs = framing.needs(left[: framing.head_bytes])
        if needs is not None and len(left) < needs <= size - begin:
            continue  # longer than a chunk
        if needs is None or not framing.is_whole(left[:needs]):
            return begin
        begin += needs
    return begin


def _is_record(framing: Framing, offset: int, size: int) -> Asked[bool]:
    """Whether a whole record with the right checksum begins here, or the footer."""
    if framing.footer_bytes and size - offset == framing.footer_bytes:
        return (yield from _ends_in_footer(framing, size))
    if size - offset < framing.head_bytes:
        return False
    needs = framing.needs((yield offset, framing.head_bytes))
    if needs is None or offset + needs > size:
        return False
    return framing.is_whole((yield offset, needs))


def _ends_in_footer(framing: Framing, size: int) -> Asked[bool]:
    if not framing.footer_bytes or size < framing.footer_bytes:
        return False
    return framing.is_footer((yield size - framing.footer_bytes, framing.footer_bytes))


def _shown(magic: bytes) -> str:
    return f"{int.from_bytes(magic, 'little'):08x}" if len(magic) == 4 else magic.hex()
