"""Frames, answers and header blocks as bytes, against the libraries that others use."""

from __future__ import annotations

from urllib.parse import unquote

import pytest
from hpack import Decoder, Encoder
from hpack.exceptions import HPACKError
from hyperframe.frame import DataFrame, Frame, GoAwayFrame, HeadersFrame, WindowUpdateFrame
from hypothesis import given
from hypothesis import strategies as st

from binlogd.grpc import frames as ours
from binlogd.grpc.hpack import SharedDecoder


def frames_in(data: bytes) -> list[Frame]:
    found = []
    while data:
        frame, size = Frame.parse_frame_header(memoryview(data)[:9])
        frame.parse_body(memoryview(data)[9 : 9 + size])
        found.append(frame)
        data = data[9 + size :]
    return found


def fields_of(*frames: Frame) -> dict[str, str]:
    block = b"".join(getattr(frame, "data", b"") for frame in frames)
    fields = Decoder(max_header_list_size=1 << 30).decode(block)
    return {str(name): str(value) for name, value in fields}


@given(st.integers(1, ours.STREAM_MAX))
def test_an_ok_is_headers_an_empty_message_and_trailers(stream: int) -> None:
    head, body, tail = frames_in(ours.ok_answer(stream))
    assert {frame.stream_id for frame in (head, body, tail)} == {stream}
    assert fields_of(head) == {":status": "200", "content-type": "application/grpc+proto"}
    assert isinstance(body, DataFrame)
    assert (body.data, set(body.flags)) == (bytes(5), set())
    assert fields_of(tail) == {"grpc-status": "0"}
    assert set(tail.flags) == {"END_HEADERS", "END_STREAM"}


@given(st.text(max_size=30_000).map(lambda text: text * 3))
def test_an_error_is_trailers_alone_however_long_its_text(text: str) -> None:
    frames = frames_in(ours.error_answer(5, 2, text))
    assert isinstance(frames[0], HeadersFrame)
    assert all(frame.body_len <= ours.FRAME_BYTES_MAX for frame in frames)
    assert "END_STREAM" in frames[0].flags
    assert ["END_HEADERS" in frame.flags for frame in frames] == [False] * (len(frames) - 1) + [
        True
    ]
    assert unquote(fields_of(*frames)["grpc-message"]) == text


def test_the_small_frames_are_what_their_names_say() -> None:
    (update,) = frames_in(ours.window_update(3, 77))
    assert isinstance(update, WindowUpdateFrame)
    assert (update.stream_id, update.window_increment) == (3, 77)
    (goodbye,) = frames_in(ours.goaway(9, 1))
    assert isinstance(goodbye, GoAwayFrame)
    assert (goodbye.last_stream_id, goodbye.error_code) == (9, 1)


_names = st.sampled_from(["te", ":path", "grpc-timeout", "x-" + "long" * 60, "cookie", "x-one"])
_values = st.sampled_from(["", "trailers", "15S", "a" * 200, "1"]) | st.text(
    "abc 0129mu", max_size=9
)
_blocks = st.lists(st.lists(st.tuples(_names, _values), max_size=8), max_size=8)


@given(_blocks, st.sets(st.integers(0, 7)), st.sampled_from([0, 60, 4096]), st.booleans())
def test_a_shared_decoder_reads_what_the_library_reads(
    blocks: list[list[tuple[str, str]]],
    left_to_h2: set[int],
    table_size: int,
    huffman: bool,  # noqa: FBT001
) -> None:
    """Whether a block is looked at and kept, looked at and left, or not looked at."""
    encoder, plain, shared = Encoder(), Decoder(), SharedDecoder()
    encoder.header_table_size = table_size
    for number, block in enumerate(blocks):
        written = encoder.encode(block, huffman=huffman)
        expected = [tuple(field) for field in plain.decode(written, raw=True)]
        if number % 3 == 2:
            assert [tuple(field) for field in shared.decode(written, raw=True)] == expected
            continue
        fields = shared.reader.look_ahead(written)
        assert fields is not None
        assert [tuple(field) for field in fields] == expected
        if number in left_to_h2:
            shared.leave(fields)
            assert [tuple(field) for field in shared.decode(b"", raw=True)] == expected


def test_a_table_that_overflows_forgets_what_the_library_forgets() -> None:
    encoder, plain, shared = Encoder(), Decoder(), SharedDecoder()
    for number in range(300):
        block = encoder.encode([("grpc-timeout", f"{number}u"), (f"x-{number % 7}", "v" * 90)])
        fields = shared.reader.look_ahead(block)
        assert fields is not None
        assert [tuple(field) for field in fields] == list(plain.decode(block, raw=True))
        assert shared.header_table.dynamic_entries == plain.header_table.dynamic_entries


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_a_damaged_block_is_damaged_for_h2_too(first: bytes, second: bytes) -> None:
    shared, plain = SharedDecoder(), Decoder()
    for block in (first, second):
        try:
            expected = [tuple(field) for field in plain.decode(block, raw=True)]
        except HPACKError:
            assert shared.reader.look_ahead(block) is None
            with pytest.raises(HPACKError):
                shared.decode(block, raw=True)
            return
        fields = shared.reader.look_ahead(block)
        assert fields is not None
        assert [tuple(field) for field in fields] == expected


def test_the_same_block_gives_the_same_list_until_the_table_changes() -> None:
    encoder, shared = Encoder(), SharedDecoder()
    shared.reader.look_ahead(encoder.encode([("x-a", "1"), ("te", "trailers")]))
    again = encoder.encode([("x-a", "1"), ("te", "trailers")])
    fields = shared.reader.look_ahead(again)
    assert shared.reader.look_ahead(again) is fields
    shared.reader.look_ahead(encoder.encode([("x-b", "2")]))
    other = shared.reader.look_ahead(again)
    assert other is not fields
    assert other != fields  # the same indices mean other fields now


def test_a_list_of_headers_that_is_too_large_is_refused_when_h2_asks() -> None:
    shared = SharedDecoder()
    shared.max_header_list_size = 100
    fields = [(b"x-name", b"v" * 50)] * 2
    shared.leave(fields)
    with pytest.raises(HPACKError):
        shared.decode(b"", raw=True)
