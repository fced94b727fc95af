"""The bytes of a relay log: what reads back, what counts as torn, what is damage."""

from __future__ import annotations

from collections.abc import Collection
from itertools import combinations
from pathlib import PurePath

from hypothesis import given
from hypothesis import strategies as st

from binlogd.log.drive import Reading, of_bytes
from binlogd.log.scan import CHUNK_BYTES
from binlogd.relay.frame import (
    HEAD,
    Damaged,
    FrameKind,
    FramePlace,
    RelayEntry,
    RelayPos,
    Torn,
    decode_entries,
    encode_entries,
    encode_frame,
    file_name,
    frame_at,
    suffix_of,
)
from binlogd.tso import Tso

HEAD_FRAME = b"".join(encode_frame(FrameKind.START, RelayPos(7, 0), Tso(5), [b'{"version":1}']))
ENTRIES = [
    RelayEntry(Tso(6), b"\x08\x01payload\x40\x00", b""),
    RelayEntry(Tso(9), b"\x08\x01ddl\x40\x05", b'{"id":3}'),
]
AT = RelayPos(7, len(HEAD_FRAME))
GROUP = b"".join(encode_frame(FrameKind.GROUP, AT, Tso(9), encode_entries(ENTRIES)))
FILE = HEAD_FRAME + GROUP


def read_frame(data: bytes, at: RelayPos) -> FramePlace | Torn | Damaged:
    """As `relay.reader.scan` reads it, with what ends a scan."""
    return Reading(frame_at(len(data), at), of_bytes(data)).ended()


entries = st.builds(
    RelayEntry,
    st.integers(0, 2**63 - 1).map(Tso),
    st.binary(max_size=80),
    st.binary(max_size=40),
)


@given(st.lists(entries, max_size=8), st.integers(0, 2**63 - 1), st.integers(0, 10**15))
def test_what_was_written_reads_back(group: list[RelayEntry], commit_ts: int, suffix: int) -> None:
    body = b"".join(encode_entries(group))
    data = b"".join(encode_frame(FrameKind.GROUP, RelayPos(suffix, 0), Tso(commit_ts), [body]))
    frame = read_frame(data, RelayPos(suffix, 0))
    assert frame == FramePlace(FrameKind.GROUP, Tso(commit_ts), HEAD.size, len(data))
    assert data[frame.begin : frame.end] == body
    assert decode_entries(body) == group


def test_the_layout_is_the_documented_one() -> None:
    assert HEAD_FRAME.hex() == (
        "424c5231" + HEAD_FRAME[4:12].hex() + "01000000"
        "0700000000000000"
        "0000000000000000"
        "0500000000000000"
        "0d00000000000000" + b'{"version":1}'.hex()
    )
    assert HEAD.size == 48


def test_a_frame_cut_at_any_byte_is_torn() -> None:
    for cut in range(len(HEAD_FRAME) + 1, len(FILE)):
        torn = read_frame(FILE[:cut], AT)
        assert isinstance(torn, Torn), cut
        assert torn.offset == AT.offset


def test_any_flipped_bit_is_damage() -> None:
    for index in range(AT.offset, len(FILE)):
        for bit in range(8):
            flipped = bytearray(FILE)
            flipped[index] ^= 1 << bit
            assert isinstance(read_frame(bytes(flipped), AT), Damaged), (index, bit)


def test_pages_that_were_never_written_are_torn() -> None:
    for cut in range(AT.offset, len(FILE) - 64):
        unwritten = FILE[:cut] + bytes(len(FILE) - cut)
        assert isinstance(read_frame(unwritten, AT), Torn), cut


LONG = [RelayEntry(Tso(9), bytes(range(1, 256)) * 9, b"{}")]
LONG_GROUP = b"".join(encode_frame(FrameKind.GROUP, AT, Tso(9), encode_entries(LONG)))
SECTORS = range(0, AT.offset + len(LONG_GROUP), 512)


def without(data: bytes, sectors: Collection[int], *, begin: int) -> bytes:
    """As it is read where these sectors, from `begin` on, were never written."""
    left = bytearray(data)
    for each in sectors:
        first, last = max(each, begin), min(each + 512, len(data))
        left[first:last] = bytes(last - first)
    return bytes(left)


def test_a_frame_is_torn_whichever_of_its_sectors_were_not_written() -> None:
    whole = HEAD_FRAME + LONG_GROUP
    for count in range(1, len(SECTORS) + 1):
        for missing in combinations(SECTORS, count):
            torn = read_frame(without(whole, missing, begin=AT.offset), AT)
            assert isinstance(torn, Torn), missing


def test_a_frame_that_others_follow_was_acknowledged_and_is_never_torn() -> None:
    behind = AT._replace(offset=AT.offset + len(LONG_GROUP))
    later = b"".join(encode_frame(FrameKind.GROUP, behind, Tso(11), encode_entries(ENTRIES)))
    for missing in SECTORS:
        data = without(HEAD_FRAME + LONG_GROUP, [missing], begin=AT.offset) + later
        assert isinstance(read_frame(data, AT), Damaged), missing


def test_a_frame_in_the_wrong_place_is_damage() -> None:
    assert isinstance(read_frame(b"\0" * AT.offset + GROUP, AT), FramePlace)
    assert isinstance(read_frame(GROUP, RelayPos(7, 0)), Damaged)
    assert isinstance(read_frame(FILE, AT._replace(suffix=8)), Damaged)


def test_file_names_sort_as_their_numbers_and_strangers_have_none() -> None:
    names = [file_name(number) for number in (0, 9, 10, 12345)]
    assert names == sorted(names)
    assert [suffix_of(name) for name in names] == [0, 9, 10, 12345]
    for stranger in (".lock", "relay-1.log", "binlog-0000000000000000-20240101000000", "x"):
        assert suffix_of(PurePath(stranger).name) is None


def test_a_large_payload_is_a_piece_of_its_own_and_reads_back() -> None:
    large = bytes(range(256)) * 8192
    entries = [RelayEntry(Tso(6), b"small", b""), RelayEntry(Tso(7), large, b"{}")]
    pieces = encode_frame(FrameKind.GROUP, AT, Tso(7), encode_entries(entries))
    assert any(piece is large for piece in pieces)
    data = bytes(AT.offset) + b"".join(pieces)
    frame = read_frame(data, AT)
    assert isinstance(frame, FramePlace)
    assert decode_entries(data[frame.begin : frame.end]) == entries


def test_a_frame_of_many_chunks_is_judged_without_being_held() -> None:
    large = [RelayEntry(Tso(9), b"\xa5" * (2 * CHUNK_BYTES + 999), b"{}")]
    group = b"".join(encode_frame(FrameKind.GROUP, AT, Tso(9), encode_entries(large)))
    behind = AT._replace(offset=AT.offset + len(group))
    later = b"".join(encode_frame(FrameKind.GROUP, behind, Tso(11), encode_entries(ENTRIES)))
    whole = HEAD_FRAME + group

    def judged(data: bytes) -> object:
        def read(offset: int, size: int) -> bytes:
            assert size < CHUNK_BYTES + HEAD.size
            return data[offset : offset + size]

        return Reading(frame_at(len(data), AT), read).ended()

    assert judged(whole) == FramePlace(FrameKind.GROUP, Tso(9), AT.offset + HEAD.size, len(whole))
    for missing in (CHUNK_BYTES - 512, CHUNK_BYTES, 2 * CHUNK_BYTES + 512):
        torn = without(whole, [missing], begin=AT.offset)
        assert judged(torn) == Torn(
            AT.offset,
            "the body of a frame does not match its checksum, and what belongs at offset"
            f" {missing} was never written",
        )
        assert isinstance(judged(torn + later), Damaged)
    assert isinstance(judged(whole[:-1] + b"x"), Damaged)
    assert isinstance(judged(whole[:-1]), Torn)
