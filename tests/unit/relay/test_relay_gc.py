"""Relay files go only behind the saved checkpoint."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from binlogd.relay.frame import RelayFile
from binlogd.relay.log import deletable
from binlogd.tso import Tso


def files(*bases: int) -> list[RelayFile]:
    return [RelayFile(n, Tso(base), n == 0, 100) for n, base in enumerate(bases)]


def test_a_file_goes_when_the_next_begins_at_or_before_the_saved_checkpoint() -> None:
    log = files(0, 100, 200)
    assert deletable(log, Tso(99)) == []
    assert deletable(log, Tso(100)) == [0]
    assert deletable(log, Tso(199)) == [0]
    assert deletable(log, Tso(200)) == [0, 1]


def test_the_newest_file_stays() -> None:
    assert deletable(files(0, 100), Tso(10**6)) == [0]
    assert deletable(files(0), Tso(10**6)) == []
    assert deletable([], Tso(10**6)) == []


def test_a_chain_that_begins_lower_frees_those_before_it() -> None:
    log = [*files(100, 200), RelayFile(2, Tso(50), starts_chain=True, size_bytes=9)]
    assert deletable(log, Tso(60)) == [0, 1]


@given(st.lists(st.integers(0, 50), min_size=1).map(sorted), st.integers(0, 60))
def test_a_reader_behind_the_saved_checkpoint_loses_nothing(bases: list[int], saved: int) -> None:
    log = files(*bases)
    left = [file for file in log if file.suffix not in deletable(log, Tso(saved))]
    assert left == log[len(log) - len(left) :]
    if bases[0] <= saved:
        assert left[0].base_ts <= saved
