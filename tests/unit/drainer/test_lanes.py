"""Keys and tables belong to lanes for ever; parts hold every change once and end where they say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.mysql.apply import LaneApplier
from binlogd.drainer.mysql.connection import MySqlServer
from binlogd.drainer.mysql.progress_table import ProgressTable
from binlogd.drainer.mysql.writer import LaneContext, RowWriter
from binlogd.drainer.rows.conflict import lane_of, lanes_for, seed_of
from binlogd.drainer.rows.parts import SLICE_ROWS, Gatherer, Limits, Part, RunKind, commit_ts_of
from binlogd.drainer.rows.progress import (
    DDL_LANE,
    REPEATED_LANE,
    SAVED_LANE,
    LanePosition,
    PendingDdl,
    low_water,
    not_as_left,
    restart_of,
)
from binlogd.drainer.rows.shape import (
    DownstreamColumn,
    DownstreamKey,
    DownstreamTable,
    Mode,
    Shapes,
    former,
    shape_of,
)
from binlogd.drainer.rows.target import Reader, Target
from binlogd.drainer.txn import Dml
from binlogd.errors import ConfigError, DownstreamWentBack, RowMismatch
from binlogd.tso import NO_TS, Tso
from tests.support.histories import KINDS, Upstream

GOLDEN = Path(__file__).parents[2] / "golden" / "lanes.json"


# --- the hash --------------------------------------------------------------------------------


def _lanes() -> dict[str, list[int]]:
    keys = [b"%d" % n for n in range(-1000, 4000)]
    keys += [b"(%d,'k%d')" % (n, n) for n in range(4999)] + [b""]
    return {
        str(count): [
            lane_of(key, seed_of(table_id), count)
            for table_id, key in zip(_ids(), keys, strict=True)
        ]
        for count in (1, 2, 4, 7)
    }


def _ids() -> list[int]:
    return [(n % 5) ** 9 + n % 3 for n in range(10_000)]


def test_ten_thousand_keys_keep_their_lanes() -> None:
    """A lane that changes its keys would apply changes twice, or never, after a restart."""
    assert json.loads(GOLDEN.read_text()) == {k: "".join(map(str, v)) for k, v in _lanes().items()}


def test_lanes_do_not_depend_on_the_process() -> None:
    program = (
        "from binlogd.drainer.rows.conflict import lane_of, seed_of;"
        "print(lane_of(b\"'x'\", seed_of(77), 1000))"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert answers == {b"%d\n" % lane_of(b"'x'", seed_of(77), 1000)}


def test_keys_are_spread_evenly() -> None:
    lanes = Counter(lane_of(b"%d" % n, seed_of(5), 4) for n in range(4000))
    assert min(lanes.values()) > 900


@pytest.mark.parametrize(("workers", "lanes"), [(1, 1), (2, 2), (4, 2), (16, 2), (32, 4), (64, 8)])
def test_workers_of_the_original_become_fewer_lanes(workers: int, lanes: int) -> None:
    assert lanes_for(workers) == lanes


# --- parts -----------------------------------------------------------------------------------


def _readers(dml: Dml, targets: dict[int, Target]) -> list[Reader]:
    readers = []
    for change in dml.changes:
        info = change.table.info
        if info.id not in targets:
            targets[info.id] = Target("h", info, shape_of(info, _downstream(info.name)))
        readers.append(Reader(change.table, targets[info.id]))
    return readers


def _downstream(name: str) -> DownstreamTable:
    """As MariaDB describes the tables of `histories`."""
    kind = next(each for each in KINDS if each.name == name)
    collations = {
        name: "" if each.tp == 8 else each.collate
        for name, each in zip("abc", kind.columns, strict=True)
    }
    return DownstreamTable(
        tuple(
            DownstreamColumn(
                column,
                "bigint",
                "" if collations[column] == "binary" else collations[column],
                not field.flag & 1,
                is_generated=False,
            )
            for column, field in zip("abc", kind.columns, strict=True)
        ),
        tuple(
            DownstreamKey(f"u{n}", tuple("abc"[c] for c in key), has_prefix=kind.prefix > 0)
            for n, (key, _) in enumerate(kind.keys)
        ),
    )


def _applied(parts: list[Part]) -> dict[str, list[tuple[RunKind, bytes]]]:
    """Every item of every statement, in order for each table."""
    items: dict[str, list[tuple[RunKind, bytes]]] = {}
    for part in parts:
        for statement in part.statements(1 << 20):
            made = items.setdefault(statement.target.label, [])
            made += [(statement.kind, item) for item in statement.items]
    return items


@pytest.mark.parametrize("seed", range(20))
def test_however_parts_are_taken_and_lives_end_every_change_is_applied_once(seed: int) -> None:
    """The tables are written one by one or without a key, so that each change shows."""
    kinds = [kind for kind in KINDS if kind.name in ("no_key", "null_key", "any_case")]
    txns = Upstream(Random(seed), kinds).transactions(60)
    lanes = 3
    whole = Gatherer([LanePosition(NO_TS)] * lanes, Limits(changes_max=10**6))
    targets: dict[int, Target] = {}
    for dml in txns:
        list(whole.add(dml, _readers(dml, targets)))
    expected = [_applied([part] if (part := whole.take(lane)) else []) for lane in range(lanes)]

    rng = Random(seed)
    positions = [LanePosition(NO_TS)] * lanes
    applied: list[list[Part]] = [[] for _ in range(lanes)]
    for life in range(12):
        gatherer = Gatherer(positions, Limits(changes_max=5, cut_changes_max=3))
        for dml in txns:
            if dml.commit_ts <= min(each.whole_ts for each in positions):
                continue
            for _ in _steps(gatherer, dml, targets):
                _take_some(gatherer, rng, positions, applied)
            if life < 11 and rng.random() < 0.08:
                break  # what was not taken is lost with the process
        else:
            for lane in range(lanes):
                _take(gatherer, lane, positions, applied)
            break
    assert [_applied(parts) for parts in applied] == expected


@pytest.mark.parametrize("seed", range(6))
def test_whoever_has_one_lane_alone_makes_of_it_what_one_with_all_lanes_does(seed: int) -> None:
    """Tables of every kind, statements and what they must find."""
    txns, lanes = Upstream(Random(seed)).transactions(80), 3
    targets: dict[int, Target] = {}
    known_after = txns[len(txns) // 2].commit_ts
    whole = Gatherer([LanePosition(NO_TS)] * lanes, Limits(changes_max=10**6), known_after)
    for dml in txns:
        list(whole.add(dml, _readers(dml, targets)))
    for lane in range(lanes):
        stored, limits = [LanePosition(NO_TS)] * lanes, Limits(changes_max=10**6)
        alone = Gatherer(stored, limits, known_after, lane)
        for dml in txns:
            list(alone.add(dml, _readers(dml, targets)))
        found, expected = alone.take(lane), whole.take(lane)
        assert found is not None
        assert expected is not None
        assert list(found.statements(1 << 20)) == list(expected.statements(1 << 20))
        assert (found.end, found.changes) == (expected.end, expected.changes)
        assert alone.changes_waiting == 0, "nothing of the other lanes"


@pytest.mark.parametrize("lane", range(3))
def test_one_lane_alone_goes_on_where_it_was_killed_in_a_transaction(lane: int) -> None:
    kinds = [kind for kind in KINDS if kind.name in ("no_key", "null_key", "one_key")]
    txns, lanes, targets = Upstream(Random(5), kinds).transactions(60), 3, dict[int, Target]()
    whole = Gatherer([LanePosition(NO_TS)] * lanes, Limits(changes_max=10**6))
    limits = Limits(changes_max=5, cut_changes_max=2)
    positions, applied, rng = [LanePosition(NO_TS)], list[Part](), Random(lane)
    for dml in txns:
        list(whole.add(dml, _readers(dml, targets)))
    for _ in range(400):  # lives
        position = positions[-1]
        alone = Gatherer([position] * lanes, limits, own=lane)
        for dml in txns:
            if dml.commit_ts <= position.whole_ts:
                continue
            list(alone.add(dml, _readers(dml, targets)))
            if rng.random() < 0.3 and (part := alone.take(lane)) is not None:
                applied.append(part)
                positions.append(part.end)
            if rng.random() < 0.1:
                break
        else:
            if (part := alone.take(lane)) is not None:
                applied.append(part)
            break
    part = whole.take(lane)
    changes = 0 if part is None else part.changes
    assert sum(each.changes for each in applied) == changes, "each change once"
    of_one = {each: items for each, items in _applied(applied).items() if each != "h.one_key"}
    expected = _applied([part] if part else [])
    assert of_one == {each: items for each, items in expected.items() if each != "h.one_key"}


def _steps(gatherer: Gatherer, dml: Dml, targets: dict[int, Target]) -> range:
    list(gatherer.add(dml, _readers(dml, targets)))
    return range(2)


def _take_some(
    gatherer: Gatherer, rng: Random, positions: list[LanePosition], applied: list[list[Part]]
) -> None:
    for lane in range(len(positions)):
        if rng.random() < 0.3:
            _take(gatherer, lane, positions, applied)


def _take(
    gatherer: Gatherer, lane: int, positions: list[LanePosition], applied: list[list[Part]]
) -> None:
    part = gatherer.take(lane)
    if part is not None:
        assert part.end.whole_ts >= positions[lane].whole_ts
        positions[lane] = part.end
        applied[lane].append(part)


@pytest.mark.parametrize("ends_after", range(0, 2600, 173))
def test_a_large_transaction_is_taken_up_at_the_change_where_it_was_cut(ends_after: int) -> None:
    kinds = [kind for kind in KINDS if kind.name == "no_key"]
    upstream = Upstream(Random(1), kinds)
    small = upstream.transactions(3)
    changes = [change for dml in upstream.transactions(600) for change in dml.changes]
    merged = changes[0].mutation
    for change in changes[1:]:
        m = change.mutation
        merged = type(merged)(
            merged.table_id,
            [*merged.inserted, *m.inserted],
            [*merged.updated, *m.updated],
            [*merged.deleted, *m.deleted],
            merged.sequence + m.sequence,
        )
    large = Dml(Tso(9999), Tso(9999), 1, (type(changes[0])(changes[0].table, merged),))
    targets: dict[int, Target] = {}
    whole = Gatherer([LanePosition(NO_TS)], Limits())
    for dml in (*small, large):
        list(whole.add(dml, _readers(dml, targets)))
    part = whole.take(0)
    assert part is not None
    expected = _applied([part])

    limits = Limits(cut_changes_max=200)
    taken: list[Part] = []
    gatherer = Gatherer([LanePosition(NO_TS)], limits)
    count = 0
    for dml in (*small, large):
        for _ in gatherer.add(dml, _readers(dml, targets)):
            count += 256
            if (part := gatherer.take(0)) is not None:
                taken.append(part)
            if count >= ends_after:
                break
    position = taken[-1].end if taken else LanePosition(NO_TS)
    again = Gatherer([position], limits)
    for dml in (*small, large):
        if dml.commit_ts > position.whole_ts:
            list(again.add(dml, _readers(dml, targets)))
    if (part := again.take(0)) is not None:
        taken.append(part)
    assert _applied(taken) == expected


def test_half_a_transaction_is_not_given_away_below_the_limits() -> None:
    upstream = Upstream(Random(1), [KINDS[0]])
    (first, *rest) = upstream.transactions(80)
    merged = first.changes[0].mutation
    for dml in rest:
        m = dml.changes[0].mutation
        merged = type(merged)(
            1,
            [*merged.inserted, *m.inserted],
            [*merged.updated, *m.updated],
            [*merged.deleted, *m.deleted],
            merged.sequence + m.sequence,
        )
    large = Dml(Tso(5), Tso(5), 1, (type(first.changes[0])(first.changes[0].table, merged),))
    gatherer = Gatherer([LanePosition(NO_TS)], Limits())
    steps = gatherer.add(large, _readers(large, {}))
    for rows_added in (0, SLICE_ROWS):
        assert next(steps, "ended") is None
        assert gatherer.changes_waiting >= rows_added
        assert gatherer.take(0) is None
        assert gatherer.translated_ts == NO_TS
    list(steps)
    part = gatherer.take(0)
    assert part is not None
    assert part.end == LanePosition(Tso(5))


def test_the_transaction_behind_a_refused_row_is_found() -> None:
    upstream = Upstream(Random(4), [KINDS[0]])
    txns = upstream.transactions(30)
    gatherer = Gatherer([LanePosition(NO_TS)], Limits())
    targets: dict[int, Target] = {}
    for dml in txns:
        list(gatherer.add(dml, _readers(dml, targets)))
    part = gatherer.take(0)
    assert part is not None
    for statement in part.statements(1 << 20):
        for item in statement.items:
            commit_ts = commit_ts_of(part, statement, item)
            makers = [
                dml.commit_ts
                for dml in txns
                for single in [_alone(dml, targets)]
                if (statement.kind, item) in single
            ]
            assert commit_ts in makers


def _alone(dml: Dml, targets: dict[int, Target]) -> set[tuple[RunKind, bytes]]:
    gatherer = Gatherer([LanePosition(NO_TS)], Limits())
    list(gatherer.add(dml, _readers(dml, targets)))
    part = gatherer.take(0)
    assert part is not None
    return {
        (statement.kind, item) for statement in part.statements(1 << 20) for item in statement.items
    }


def test_statements_stay_below_the_limit_where_rows_allow_it() -> None:
    upstream = Upstream(Random(4))
    gatherer = Gatherer([LanePosition(NO_TS)], Limits())
    targets: dict[int, Target] = {}
    for dml in upstream.transactions(100):
        list(gatherer.add(dml, _readers(dml, targets)))
    part = gatherer.take(0)
    assert part is not None
    statements = list(part.statements(300))
    assert all(len(each.text) <= 300 or len(each.items) == 1 for each in statements)
    ids = [each.target.table_id for each in statements]
    assert ids == sorted(ids), "tables in one order in every part"


def test_a_row_that_does_not_decode_names_table_and_transaction() -> None:
    upstream = Upstream(Random(4), [KINDS[0]])
    dml = upstream.transactions(1)[0]
    inserted = dml.changes[0].mutation.inserted
    assert isinstance(inserted, list)
    inserted[0] = b"\x08"
    gatherer = Gatherer([LanePosition(NO_TS)], Limits())
    with pytest.raises(RowMismatch, match=rf"h\.one_key.*{dml.commit_ts}"):
        list(gatherer.add(dml, _readers(dml, {})))


# --- the shape of a former life --------------------------------------------------------------


def test_a_table_keeps_its_lanes_and_key_whatever_the_downstream_became() -> None:
    upstream = Upstream(Random(4), [KINDS[0]])
    info = upstream.transactions(1)[0].changes[0].table.info
    there = _downstream(info.name)
    noted = former(shape_of(info, there))
    now = Shapes().as_before(noted, "h", info, replace(there, has_triggers=True))
    assert (now.mode, now.by_key, now.is_upsert) == (Mode.MERGED, True, True)
    assert former(now) == noted
    without = Shapes().as_before(noted, "h", info, replace(there, keys=()))
    assert (without.by_key, without.deletes_first) == (True, True)


def test_a_key_that_is_gone_while_its_rows_were_written_in_order_is_asked_back() -> None:
    kind = next(each for each in KINDS if each.name == "any_case")
    info = Upstream(Random(4), [kind]).transactions(1)[0].changes[0].table.info
    there = _downstream(info.name)
    shape = shape_of(info, there)
    assert shape.mode is Mode.ORDERED
    with pytest.raises(ConfigError, match="put it back"):
        Shapes().as_before(former(shape), "h", info, replace(there, keys=()))


# --- progress --------------------------------------------------------------------------------


def test_the_low_water_mark_stands_before_what_waits() -> None:
    assert low_water(Tso(50), []) == 50
    assert low_water(Tso(50), [Tso(40), Tso(45)]) == 39


async def test_what_is_in_work_holds_the_mark_also_while_more_waits() -> None:
    server = MySqlServer("127.0.0.1", 1, "root", "")
    context = LaneContext(server, ProgressTable("s", 1), Limits(), 1 << 20, Random(1))
    before = LanePosition(NO_TS)
    gatherer = Gatherer([before], Limits())
    applier = LaneApplier([RowWriter(0, context)], gatherer, [before])
    first, second = Upstream(Random(1), [KINDS[0]]).transactions(2)
    list(gatherer.add(first, _readers(first, {})))
    applier._busy[0] = gatherer.take(0)
    list(gatherer.add(second, _readers(second, {})))
    assert gatherer.first_waiting == [second.commit_ts]
    assert applier.applied_ts() == first.commit_ts - 1


def test_a_restart_begins_behind_the_slowest_lane() -> None:
    restart = restart_of([(0, 2, 70, 0, 0, ""), (1, 2, 60, 3, 0, "")], Checkpoint(Tso(40)))
    assert restart.lanes == (LanePosition(Tso(70)), LanePosition(Tso(60), 3))
    assert (restart.low_ts, restart.high_ts, restart.is_level) == (59, 70, False)


@pytest.mark.parametrize(
    ("stored_ts", "noted_there", "low_ts"),
    [
        (90, None, 90),  # set forward by hand
        (90, 80, 90),
        (90, 90, 60),  # ours, and ahead of the data: they went back
        (90, 0, 60),  # of a version that noted nothing there
        (50, 50, 60),
        (40, 50, 40),  # set back by hand
    ],
)
def test_a_checkpoint_raises_lanes_only_where_somebody_else_set_it(
    stored_ts: int, noted_there: int | None, low_ts: int
) -> None:
    rows = [(0, 2, 70, 0, 0, ""), (1, 2, 20, 0, 0, ""), (-2, 0, 60, 0, 0, "")]
    elsewhere = None if noted_there is None else Tso(noted_there)
    assert restart_of(rows, Checkpoint(Tso(stored_ts)), elsewhere).low_ts == low_ts


def test_up_to_where_a_copy_may_hold_rows_is_known_to_every_restart() -> None:
    rows = [(0, 1, 7, 0, 0, ""), (REPEATED_LANE, 0, 9, 0, 0, ""), (SAVED_LANE, 0, 5, 0, 0, "")]
    for stored in (5, 3):
        assert restart_of(rows, Checkpoint(Tso(stored))).repeated_ts == 9
    assert restart_of([rows[1]], Checkpoint(Tso(5))).repeated_ts == 9


def test_a_checkpoint_elsewhere_that_is_gone_leaves_it_to_the_rows() -> None:
    rows = [(0, 1, 70, 0, 0, ""), (-2, 0, 60, 0, 0, "")]
    restart = restart_of(rows, None, NO_TS)
    assert (restart.low_ts, restart.is_set_back) == (70, False)


def test_a_checkpoint_counts_for_every_lane() -> None:
    restart = restart_of([(0, 2, 70, 0, 0, ""), (1, 2, 10, 3, 0, "")], Checkpoint(Tso(40)))
    assert restart.lanes == (LanePosition(Tso(70)), LanePosition(Tso(40)))
    assert restart_of([], Checkpoint(Tso(40))).low_ts == 40
    assert restart_of([], None).lanes == ()


@pytest.mark.parametrize(
    ("stored", "low_ts", "is_set_back"),
    [
        (Checkpoint(Tso(50)), 60, False),  # as it was saved: progress is ahead of it
        (Checkpoint(Tso(65)), 65, False),  # set forward
        (Checkpoint(Tso(40)), 40, True),
        (None, 0, True),
    ],
)
def test_a_checkpoint_that_was_set_back_is_obeyed(
    stored: Checkpoint | None, low_ts: int, *, is_set_back: bool
) -> None:
    lanes = [(0, 2, 70, 0, 0, ""), (1, 2, 60, 0, 0, "")]
    restart = restart_of([*lanes, (-2, 0, 50, 0, 0, ""), (-1, 0, 71, 1, 3, "")], stored)
    assert (restart.low_ts, restart.is_set_back) == (low_ts, is_set_back)
    assert (restart.ddl is None) == is_set_back


def test_a_ddl_that_was_begun_is_found_again() -> None:
    rows = [(0, 1, 70, 0, 0, ""), (DDL_LANE, 0, 71, 1, 33, "sum")]
    assert restart_of(rows, None).ddl == PendingDdl(Tso(71), 1, 33, "sum")
    rows[1] = (DDL_LANE, 3, 71, 0, 33, "sum")
    assert restart_of(rows, None).ddl == PendingDdl(Tso(71), 0, 33, "sum", part=3)


@pytest.mark.parametrize(
    "rows", [[(0, 2, 1, 0, 0, "")], [(0, 2, 1, 0, 0, ""), (1, 3, 1, 0, 0, "")]]
)
def test_rows_that_contradict_each_other_are_refused(
    rows: list[tuple[int, int, int, int, int, str]],
) -> None:
    with pytest.raises(ConfigError, match="progress"):
        restart_of(rows, None)


def test_a_lane_that_is_further_than_it_was_brought_names_both_that_can_have_done_it() -> None:
    here, ahead = LanePosition(Tso(100)), LanePosition(Tso(105))
    refused = not_as_left("127.0.0.1:3306", [ahead, here], [here, here])
    assert isinstance(refused, ConfigError)
    assert "commit_ts 100, 105, is further than this process came, commit_ts 100" in refused.message
    assert "start again" in refused.todo
    assert isinstance(not_as_left("127.0.0.1:3306", [here], [ahead]), DownstreamWentBack)
