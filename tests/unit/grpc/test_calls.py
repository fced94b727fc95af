"""Whole calls, taken out of the bytes of a connection in one pass."""

from __future__ import annotations

from collections.abc import Sequence

from hpack import Encoder
from hypothesis import given
from hypothesis import strategies as st

from binlogd.grpc import frames
from binlogd.grpc.calls import Call, CallTable, Inlet, by_owner, shape_of
from binlogd.grpc.hpack import SharedDecoder
from binlogd.grpc.prefix import prefixed

FIELDS = [(":method", "POST"), (":path", "/a.B/C"), ("te", "trailers")]
AMPLE = {"streams": 100, "window": 1 << 20}


def new_table(inlet: Inlet) -> CallTable:
    table = CallTable(object(), SharedDecoder().reader, {})
    shape = tuple((name.encode(), value.encode()) for name, value in FIELDS)
    table.learn(shape, inlet)
    return table


def new_inlet(room: int = 1 << 20) -> Inlet:
    inlet = Inlet(1 << 18)
    inlet.room = room
    return inlet


def written(encoder: Encoder, stream: int, message: bytes, timeout: str = "15S") -> bytes:
    block = encoder.encode([*FIELDS, ("grpc-timeout", timeout)])
    return frames.frame(frames.HEADERS, frames.END_HEADERS, stream, block) + frames.frame(
        frames.DATA, frames.END_STREAM, stream, prefixed(message)
    )


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=8), st.data())
def test_whole_calls_are_taken_and_what_is_cut_short_is_left(
    messages: Sequence[bytes], data: st.DataObject
) -> None:
    encoder, inlet = Encoder(), new_inlet()
    table = new_table(inlet)
    calls = [written(encoder, 2 * n + 1, each, f"{n}u") for n, each in enumerate(messages)]
    whole = data.draw(st.integers(0, len(calls) - 1))
    rest = data.draw(st.integers(0, len(calls[whole]) - 1))
    sent = b"".join(calls[:whole]) + calls[whole][:rest]
    stopped = table.take(b"--" + sent, 2, **AMPLE)
    assert stopped == 2 + sum(map(len, calls[:whole]))
    assert inlet.messages == list(messages[:whole])
    assert table.take(b"".join(calls[whole:]), 0, **AMPLE) == sum(map(len, calls[whole:]))
    assert inlet.messages == list(messages)
    assert table.held == inlet.size == sum(5 + len(each) for each in messages)


def test_a_call_that_is_no_whole_call_of_a_known_shape_is_left() -> None:
    good = written(Encoder(), 5, b"one")
    for odd in (
        written(Encoder(), 3, b"a stream of the past"),
        written(Encoder(), 6, b"even"),
        frames.frame(frames.PING, 0, 0, bytes(8)) + good,
        good[:-1],
        good[:3] + bytes([frames.DATA]) + good[4:],
        good[:4] + bytes([frames.END_HEADERS | frames.END_STREAM]) + good[5:],
        good.replace(b"one", b"on"),
    ):
        table = new_table(inlet := new_inlet())
        table.highest = 3
        assert table.take(odd, 0, **AMPLE) == 0
        assert not table.has_read
        assert inlet.messages == []


def test_headers_that_were_read_in_vain_are_handed_on() -> None:
    table = new_table(inlet := new_inlet())
    odd = written(Encoder(), 1, b"one", "soon")
    assert table.take(odd, 0, **AMPLE) == 0
    assert table.has_read
    assert table.fields is not None
    assert shape_of(table.fields) is None
    assert inlet.messages == []


def test_headers_with_one_less_one_more_or_another_are_judged_by_themselves() -> None:
    encoder, table = Encoder(), new_table(inlet := new_inlet())
    assert table.take(written(encoder, 1, b"one", "15S"), 0, **AMPLE)
    assert table.take(written(encoder, 3, b"two", "14999990u"), 0, **AMPLE)
    others = (
        FIELDS[:-1],
        [*FIELDS, ("authorization", "me")],
        [*FIELDS, FIELDS[-1]],
        [FIELDS[0], (":path", "/a.B/D"), FIELDS[2]],
        [*FIELDS, ("grpc-timeout", "soon")],
    )
    for fields in others:
        block = encoder.encode(fields)
        head = frames.frame(frames.HEADERS, frames.END_HEADERS, 5, block)
        odd = head + frames.frame(frames.DATA, frames.END_STREAM, 5, prefixed(b"odd"))
        assert table.take(odd, 0, **AMPLE) == 0
        assert table.has_read
    assert table.take(written(encoder, 5, b"three", "15S"), 0, **AMPLE)
    assert inlet.messages == [b"one", b"two", b"three"]


def test_no_more_is_taken_than_there_are_streams_window_and_room() -> None:
    encoder = Encoder()
    calls = [written(encoder, 2 * n + 1, b"12345") for n in range(3)]
    for limits, room in (
        ({"streams": 1, "window": 100}, 100),
        ({"streams": 9, "window": 19}, 100),
        ({"streams": 9, "window": 100}, 19),
    ):
        table = new_table(inlet := new_inlet(room))
        assert table.take(b"".join(calls), 0, **limits) == len(calls[0])
        assert len(inlet.calls) == 1


def test_answers_go_as_far_as_the_windows_and_not_to_who_has_left() -> None:
    inlet = new_inlet()
    table = new_table(inlet)
    encoder = Encoder()
    for stream in (1, 3, 5, 7):
        table.take(written(encoder, stream, b"m"), 0, **AMPLE)
    calls = inlet.drain().calls
    assert inlet.calls == []
    ((_, mine),) = by_owner(calls)
    assert mine == calls
    del table.open[3]
    table.abandoned += 1
    assert table.acknowledge(calls, 12, 5) == [frames.ok_answer(1), frames.ok_answer(5)]
    assert list(table.blocked) == [7]
    assert (table.abandoned, table.freed, list(table.open)) == (0, 4 * 6, [7])


def begun(table: CallTable, inlet: Inlet, stream: int, size: int) -> Call:
    """A call whose prefix says so many bytes with itself, and which has room for them."""
    table.open[stream] = call = Call(object(), stream, inlet, [])
    call.put(prefixed(bytes(size - 5))[:5])
    call.counted = size
    return call


def test_frames_that_go_on_with_a_message_are_taken_up_to_its_end() -> None:
    table = new_table(inlet := new_inlet())
    one, two = begun(table, inlet, 1, 65), begun(table, inlet, 3, 35)
    sent = b"".join(
        (
            frames.frame(frames.DATA, 0, 1, b"a" * 40),
            frames.frame(frames.DATA, 0, 3, b"b" * 30),
            frames.frame(frames.DATA, 0, 1, b"c" * 10),
        )
    )
    for odd in (
        frames.frame(frames.DATA, frames.END_STREAM, 1, b"d" * 10),
        frames.frame(frames.DATA, frames.PADDED, 1, bytes(5)),
        frames.frame(frames.DATA, 0, 1, bytes(11)),  # more than was said
        frames.frame(frames.DATA, 0, 5, b"d"),
        frames.frame(frames.PING, 0, 0, bytes(8)),
        frames.frame(frames.DATA, 0, 1, b"cut off")[:-1],
    ):
        for call in (one, two):
            call.pieces, call.size, call.returned = [call.pieces[0][:5]], 5, 0
        table.held = table.freed = 0
        assert table.more(b"--" + sent + odd, 2, window=80) == 2 + len(sent)
        assert b"".join(one.pieces)[5:] == b"a" * 40 + b"c" * 10
        assert b"".join(two.pieces)[5:] == b"b" * 30
        assert table.held == 80
        assert table.freed == 90, "with the prefixes, which were here"


def test_no_more_of_a_message_is_taken_than_the_window_has() -> None:
    table = new_table(inlet := new_inlet())
    begun(table, inlet, 1, 65)
    sent = frames.frame(frames.DATA, 0, 1, bytes(40))
    assert table.more(sent + sent[:-20], 0, window=39) == 0
    assert table.more(sent, 0, window=40) == len(sent)


@given(st.lists(st.integers(1, 20_000), max_size=40), st.integers(0, 4))
def test_a_message_in_small_frames_is_held_in_few_pieces(sizes: list[int], first: int) -> None:
    call = Call(object(), 1, new_inlet(), [])
    whole = prefixed(bytes(sum(sizes)))
    call.put(whole[:first])
    at = first
    for size in [5 - first, *sizes]:
        call.put(whole[at : at + size])
        at += size
    assert b"".join(call.pieces) == whole
    assert call.size == len(whole)
    assert len(call.pieces[0]) >= 5
    assert len(call.pieces) <= 2 + 2 * len(whole) // frames.FRAME_BYTES_MAX
