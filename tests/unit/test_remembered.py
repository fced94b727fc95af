"""What a process remembers has a limit: the same again, of other names, makes it no larger."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import binlogd
from binlogd.drainer import early_columns
from binlogd.drainer.early_columns import EarlyColumns
from binlogd.drainer.filtering import route
from binlogd.drainer.filtering.route import RouteRule, TableRouter
from binlogd.drainer.rows import literals
from binlogd.drainer.rows.literals import laid_out
from binlogd.drainer.txn import Dml, TableChange
from binlogd.log.pointer import FileId, Place
from binlogd.node.samples import MINUTE_MS, MINUTES_MAX, SAMPLES_MAX, Counts, SampleHistory
from binlogd.pump.shard.options import ShardOptions
from binlogd.pump.shard.sorter import OUTCOMES_KEPT_MAX, Sorter
from binlogd.pump.shard.window import Window
from binlogd.tidb.kinds import Tp
from binlogd.tidb.known_tables import Named
from binlogd.tidb.model import Column, FieldType, Table, TableAt
from binlogd.tidb.row import encode_insert
from binlogd.tidb.schema import SchemaTracker
from binlogd.tso import NO_TS, Tso
from binlogd.upstream.keyspace.store import KeyspaceLimits
from binlogd.upstream.keyspace.versions import Keyspace, KeyVersion
from binlogd.wire.mutation import Mutation
from tests.support.held import objects_below

Use = Callable[[int], None]
"""The n-th use, with another name, key or moment than any before it."""


def sorter_and_window() -> tuple[object, Use, int]:
    """Each outcome is remembered for a while, but not where its prewrite stands."""
    sorter = Sorter(outcomes_kept=500)
    window = Window(floor=NO_TS, bytes_max=1 << 20, commits_max=500)

    def use(number: int) -> None:
        start_ts, commit_ts = Tso(10 * number + 10), Tso(10 * number + 15)
        place = Place(FileId(number // 100), 300 * number, 1000 + number)
        sorter.prewrite(start_ts, place, 0.0)
        window.prewrite(start_ts, b"prewrite %d" % number)
        window.commit(
            commit_ts, start_ts, b"commit %d" % number, sorter.outcome(start_ts, commit_ts)
        )

    return (sorter, window), use, 3_000


def outcomes_alone() -> tuple[object, Use, int]:
    """A timestamp each, and not a place: that took two thirds of the memory of all of them."""
    sorter = Sorter(outcomes_kept=500)

    def use(number: int) -> None:
        sorter.prewrite(Tso(2 * number + 10), Place(FileId(number), 300 * number, number), 0.0)
        sorter.outcome(Tso(2 * number + 10), Tso(2 * number + 11))

    return sorter, use, 1_000


def table(*columns: Column) -> TableAt:
    info = Table(7, "t", columns, pk_is_handle=True)
    return TableAt("db", info, 1, None, {}, may_lack_columns=False)


def early_changes() -> tuple[object, Use, int]:
    """Of transactions whose schema is not known yet; each table runs ahead once."""
    early, at = EarlyColumns(SchemaTracker(), TableRouter(), NO_TS), table()

    def use(number: int) -> None:
        own = replace(at, info=replace(at.info, id=number + 100))
        change = TableChange(own, Mutation(number + 100, [b"row %d" % number], [], [], b"\0"))
        early.saw(Dml(Tso(number + 10), Tso(number + 11), number // 50 + 5, (change,)))

    return early, use, 1_000


def routed_tables() -> tuple[object, Use, int]:
    """Those that were dropped again: one a day."""
    router = TableRouter([RouteRule("db", "t*", "other")])
    return router, lambda n: router.reserve(Named("db", f"t{n}"), lambda _: False), 1_500


def samples() -> tuple[object, Use, int]:
    """A sample a second."""
    history = SampleHistory()

    def use(number: int) -> None:
        history.take(number * MINUTE_MS // 2 + 7, number / 7, Counts(number * 501, number * 777))

    return history, use, 2 * (SAMPLES_MAX + MINUTES_MAX)


def keyspace() -> tuple[object, Use, int]:
    """Heartbeats, which are history up to the compaction."""
    found = Keyspace()

    def use(number: int) -> None:
        found.add([KeyVersion(b"node", number + 2, 2, number + 1, b"%d" % number)], number + 2)
        if number % 100 == 0:
            found.compact(number)

    return found, use, 1_000


@pytest.mark.parametrize(
    "part", [sorter_and_window, outcomes_alone, early_changes, routed_tables, samples, keyspace]
)
def test_a_part_that_is_full_stays_as_it_is(
    part: Callable[[], tuple[object, Use, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early_columns, "TABLES_KEPT_MAX", 200)
    monkeypatch.setattr(early_columns, "KEPT_BYTES_MAX", 200_000)
    monkeypatch.setattr(route, "KEPT_MAX", 500)
    held, use, count = part()
    for number in range(count):
        use(number)
    full = objects_below(held)
    for number in range(count, 2 * count):
        use(number)
    assert objects_below(held) <= full * 1.05 + 10


def test_the_limits_are_those_that_the_page_about_sizing_names() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "sizing.md").read_text()
    shard, keyspace = ShardOptions(), KeyspaceLimits()
    for row in (
        f"newest commits, a shard | {shard.window_commits_max:,}, and"
        f" {shard.window_bytes_max >> 20} MiB,",
        f"outcomes, a shard | {OUTCOMES_KEPT_MAX:,} |",
        f"ahead of their DDL | {early_columns.KEPT_CHANGES_MAX:,}, and"
        f" {early_columns.KEPT_BYTES_MAX >> 20} MiB |",
        f"days and times | {literals.CLOCKS_KEPT_MAX:,} clocks, {literals.DAYS_KEPT_MAX:,} days",
        f"registry | {2 * keyspace.history_revisions:,} revisions,"
        f" or {2 * keyspace.history_bytes >> 20} MiB",
    ):
        assert row in page, row


def test_of_an_outcome_a_timestamp_is_remembered() -> None:
    sorter, use, count = outcomes_alone()
    empty = objects_below(sorter)
    for number in range(count):
        use(number)
    assert objects_below(sorter) - empty <= 500 + 10


def test_a_table_that_ran_ahead_and_was_forgotten_is_in_doubt_and_not_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(early_columns, "TABLES_KEPT_MAX", 2)
    early, use, _ = early_changes()
    assert isinstance(early, EarlyColumns)
    for number in range(4):
        use(number)
    assert early._complete_after == 12, "the second table's change, the newest that is forgotten"


def moments() -> Iterator[bytes]:
    """Rows with a DATETIME each, of many days, and on each at another time."""
    at = table(*MOMENT_COLUMNS)
    for number in range(60_000):
        day, second = number % 9_000, number * 7 % 86_400
        date = f"{1970 + day // 336:04d}-{day // 28 % 12 + 1:02d}-{day % 28 + 1:02d}"
        clock = f"{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
        yield encode_insert(at.info, {1: f"{date} {clock}"}, handle=number)


MOMENT_COLUMNS = (Column(1, "at", 0, FieldType(Tp.DATETIME)),)


def test_texts_of_moments_are_kept_up_to_a_limit_and_the_newest_are_among_them() -> None:
    fast = laid_out(table(*MOMENT_COLUMNS), MOMENT_COLUMNS, [])
    assert fast is not None
    rows = list(moments())
    for row in rows:
        fast.insert(row)
        assert len(literals._CLOCK_AT) <= literals.CLOCKS_KEPT_MAX
        assert len(literals._DAYS_AT) <= literals.DAYS_KEPT_MAX
    newest = fast.insert(rows[-1])[1]
    assert newest[-11:-2] in literals._CLOCK_AT.values(), newest


def test_every_cache_of_a_function_has_a_limit_of_some_thousands() -> None:
    seen = 0
    for info in pkgutil.walk_packages(binlogd.__path__, "binlogd."):
        if info.name.startswith(("binlogd.spark", "binlogd.snapshot", "binlogd.__main__")):
            continue  # programs of their own, which end
        for name, value in vars(importlib.import_module(info.name)).items():
            if hasattr(value, "cache_parameters"):
                seen += 1
                limit = value.cache_parameters()["maxsize"]
                assert limit is not None, f"{info.name}.{name}"
                assert limit <= 4_096, f"{info.name}.{name}"
    assert seen >= 4
