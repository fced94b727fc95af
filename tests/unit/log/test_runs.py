"""Which bytes of a log are read for records at many places, and what is cut out of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from binlogd.log import record
from binlogd.log.pointer import FileId, Place
from binlogd.log.runs import cut, runs

_RUN_BYTES = 4 << 20


def _segment(lengths: list[int], gaps: list[int], fid: FileId) -> tuple[bytes, list[Place]]:
    parts: list[bytes] = []
    places: list[Place] = []
    at = 0
    for number, (length, gap) in enumerate(zip(lengths, gaps, strict=True)):
        parts += (bytes(gap), record.encode(bytes([number % 251]) * length))
        places.append(Place(fid, at + gap, length))
        at += gap + record.HEADER_BYTES + length
    return b"".join(parts), places


_RECORDS = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 300, 1 << 20, 5 << 20]), st.sampled_from([0, 7, 16_000, 90_000])
    ),
    max_size=8,
)


@given(_RECORDS, _RECORDS, st.randoms(use_true_random=False))
def test_every_record_is_read_once_in_pieces_of_some_megabytes(first, second, random) -> None:  # type: ignore[no-untyped-def]
    contents, places = [], []
    for fid, some in enumerate((first, second)):
        content, found = _segment([x for x, _ in some], [x for _, x in some], FileId(fid))
        contents.append(content)
        places += found
    random.shuffle(places)
    places += places[:1]  # one is asked for twice
    payloads = [b"?"] * len(places)
    for fid, together in runs(places):
        assert sum(run.length for run in together) <= _RUN_BYTES or (
            sum(len({places[index] for index in run.indexes}) for run in together) == 1
        )
        for run in together:
            block = contents[fid][run.begin : run.begin + run.length]
            assert cut(block, run, places, payloads) is None
    for place, payload in zip(places, payloads, strict=True):
        begin = place.offset + record.HEADER_BYTES
        assert payload == contents[place.fid][begin : begin + place.length]


def test_neighbours_are_read_at_once_and_a_wide_gap_is_passed_over() -> None:
    content, places = _segment([10, 10, 10], [0, 1_000, 50_000], FileId(3))
    ((fid, found),) = runs([*reversed(places)])
    assert fid == 3
    assert [(run.begin, run.begin + run.length) for run in found] == [
        (0, places[1].offset + 26),
        (places[2].offset, len(content)),
    ]


def test_commits_and_their_prewrites_among_each_other_are_read_at_once() -> None:
    content, places = _segment([10] * 8, [0, 0, 9_000, 0, 0, 7_000, 0, 0], FileId(3))
    mixed = [*places[1::2], *places[::2]]
    ((_, (run,)),) = runs(mixed)
    assert (run.begin, run.length, len(run.indexes)) == (0, len(content), 8)
    damaged = bytearray(content)
    for place in (places[4], places[5]):
        damaged[place.offset + record.HEADER_BYTES] ^= 1
    wrong = cut(bytes(damaged), run, mixed, [b""] * 8)
    assert wrong is not None
    assert wrong[0] == places[4].offset, "the first in the log"


def test_a_record_that_does_not_read_is_named_with_its_offset() -> None:
    content, places = _segment([10, 10], [0, 0], FileId(0))
    ((_, (run,)),) = runs(places)
    damaged = content[:-1] + b"?"
    payloads = [b"", b""]
    wrong = cut(damaged, run, places, payloads)
    assert wrong is not None
    assert wrong[0] == places[1].offset
    assert "checksum mismatch" in wrong[1]
    assert payloads[0] == bytes(10)
    assert "the file ends after 20 of 26" in str(cut(content[:-6], run, places, payloads))
