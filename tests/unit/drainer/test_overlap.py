"""What may be written ahead of its turn meets nothing of what is ahead."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from binlogd.drainer.rows.overlap import split
from binlogd.drainer.rows.parts import Part, RunKind
from binlogd.drainer.rows.plan import Key
from binlogd.drainer.rows.shape import Mode, Shape
from binlogd.drainer.rows.target import Target
from binlogd.tidb.model import Table

MERGED = Shape(Mode.MERGED, by_key=True, columns=(), key=())
BY_TABLE = Shape(Mode.MERGED, by_key=False, columns=(), key=())
SINGLE = Shape(Mode.SINGLE, by_key=False, columns=(), key=())
TRIGGERED = Shape(Mode.SINGLE, by_key=False, columns=(), key=(), has_triggers=True)


def target(number: int, shape: Shape) -> Target:
    return Target("s", Table(number, f"t{number}", (), pk_is_handle=True), shape)


TARGETS = (target(1, MERGED), target(2, MERGED), target(3, BY_TABLE), target(4, SINGLE))
STATES: st.SearchStrategy[dict[Key, bytes | None]] = st.dictionaries(
    st.integers(0, 9), st.one_of(st.none(), st.binary(min_size=1, max_size=2)), max_size=4
)


@st.composite
def parts(draw: st.DrawFn) -> Part:
    part = Part()
    for each in TARGETS[:3]:
        states = draw(STATES)
        if states:
            part.merged[each] = states
    if draw(st.booleans()):
        part.runs[TARGETS[3]] = [(RunKind.SINGLE, [b"x"], bytearray(1))]
    return part


@given(parts(), st.lists(parts(), max_size=3), st.sets(st.just(TARGETS[1].name)))
def test_early_changes_meet_nobody_and_nothing_is_lost(
    part: Part, ahead: list[Part], bound: set[bytes]
) -> None:
    early, late = split(part, ahead, bound)
    for each in TARGETS[:3]:
        whole = part.merged.get(each, {})
        assert {**early.merged.get(each, {}), **late.merged.get(each, {})} == whole
        assert not early.merged.get(each, {}).keys() & late.merged.get(each, {}).keys()
        for other in ahead:
            met = other.merged.get(each, {})
            mine = early.merged.get(each, {})
            assert not mine.keys() & met.keys()
            if met and mine:  # the table is shared
                assert each.by_key
                assert each.name not in bound
                assert None not in [*met.values(), *mine.values()]
    runs = {**early.runs, **late.runs}
    assert runs == part.runs
    if any(other.runs for other in ahead):
        assert not early.runs


def test_alone_everything_is_early() -> None:
    part = Part(
        merged={TARGETS[0]: {1: None, 2: b"2"}},
        runs={TARGETS[3]: [(RunKind.WRITE, [], bytearray())]},
    )
    early, late = split(part, [], set())
    assert (early.merged, early.runs) == (part.merged, part.runs)
    assert not late.merged
    assert not late.runs


def test_what_only_the_first_of_several_parts_ahead_touches_is_late_as_well() -> None:
    both = TARGETS[0]
    ahead = [Part(merged={both: {key: b"old"}}) for key in (1, 2)]
    early, late = split(Part(merged={both: {1: b"a", 2: b"b", 3: b"c"}}), ahead, set())
    assert (early.merged, late.merged) == ({both: {3: b"c"}}, {both: {1: b"a", 2: b"b"}})


def test_a_trigger_may_reach_any_table() -> None:
    part = Part(merged={TARGETS[0]: {1: b"1"}})
    ahead = Part(runs={target(9, TRIGGERED): [(RunKind.WRITE, [b"x"], bytearray(1))]})
    early, late = split(part, [ahead], set())
    assert not early.merged
    assert late.merged == part.merged


def test_which_rows_must_be_there_is_told_of_each_half() -> None:
    """Of a row that is new nobody looks whether it was there before."""
    part, ahead, at = Part(), Part(), TARGETS[0]
    part.merged[at] = {1: b"(1)", 2: b"(2)", 3: b"(3)", 4: b"(4)"}
    part.before[at] = [1, 2, 3]
    ahead.merged[at] = {1: b"(1)"}
    early, late = split(part, [ahead], set())
    (first,), (second,) = (list(each.statements(1000)) for each in (early, late))
    assert (first.items, first.finds) == ([b"(2)", b"(3)", b"(4)"], b"\1\1\0")
    assert (second.items, second.finds) == ([b"(1)"], b"\1")
