"""Which Pump is chosen."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from binlogd.client.strategy import Candidate, Selector, Strategy

THREE = [Candidate(name, 50, 0) for name in "abc"]


def chosen(
    selector: Selector, candidates: Sequence[Candidate], start_ts: int = 0, retries: int = 0
) -> str:
    candidate = selector.choose(candidates, start_ts=start_ts, retries=retries)
    return candidate.node_id if candidate else ""


@given(st.sampled_from(Strategy), st.integers(0, 1 << 62), st.integers(0, 1 << 30))
def test_without_a_pump_there_is_no_choice(strategy: Strategy, start_ts: int, retries: int) -> None:
    assert chosen(Selector(strategy), [], start_ts, retries) == ""


def test_range_goes_round_and_begins_anew_with_a_new_list() -> None:
    selector = Selector(Strategy.RANGE)
    assert [chosen(selector, THREE) for _ in range(4)] == ["a", "b", "c", "a"]
    selector.restart()
    assert chosen(selector, THREE) == "a"


def test_hash_depends_on_the_transaction_alone_and_a_retry_goes_on_to_the_next() -> None:
    selector = Selector(Strategy.HASH)
    assert [chosen(selector, THREE, 7) for _ in range(3)] == ["b", "b", "b"]
    assert [chosen(selector, THREE, 7, retries) for retries in range(4)] == ["b", "c", "a", "b"]


def test_score_prefers_what_is_better_off_and_less_loaded() -> None:
    selector = Selector(Strategy.SCORE)
    assert chosen(selector, [Candidate("full", 5, 0), Candidate("empty", 90, 0)]) == "empty"
    assert chosen(selector, [Candidate("idle", 40, 0), Candidate("busy", 90, 8)]) == "idle"
    assert chosen(selector, [Candidate("a", 0, 3), Candidate("b", 0, 2)]) == "b"


@given(st.integers(1, 100), st.integers(1, 100))
def test_score_shares_out_what_is_in_flight_as_the_scores_say(one: int, other: int) -> None:
    selector, in_flight = Selector(Strategy.SCORE), {"one": 0, "other": 0}
    for _ in range(200):
        candidates = [
            Candidate("one", one, in_flight["one"]),
            Candidate("other", other, in_flight["other"]),
        ]
        in_flight[chosen(selector, candidates)] += 1
    expected = 200 * one / (one + other)
    assert abs(in_flight["one"] - expected) <= 2


@given(st.sampled_from(Strategy), st.integers(0, 1 << 62))
def test_retries_come_to_every_pump(strategy: Strategy, start_ts: int) -> None:
    selector = Selector(strategy)
    tried = {chosen(selector, THREE, start_ts, retries) for retries in range(3)}
    assert len(tried) >= (2 if strategy is Strategy.SCORE else 3)
