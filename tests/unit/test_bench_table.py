"""The table of `make bench`: every row is there, and one without figures says why."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.bench.bench_apply import LOADS
from tests.bench.bench_table import (
    BARE,
    GO,
    MEASURES,
    ONCE,
    OURS,
    TURNS,
    WRITES,
    Contestant,
    Run,
    TooBusy,
    in_turns,
)
from tests.bench.figures import (
    OTHERS,
    OTHERS_MAX,
    ROWS,
    Figure,
    Found,
    Line,
    Missing,
    Row,
    Span,
    line,
    lines,
    table,
)
from tests.bench.pump_process import Load, OtherWork, PumpProcess

NAMES = [row.name for row in ROWS]
PUBLISHED = Span(100, 200)


def of(row: Row, value: float) -> Found:
    return {OTHERS: (0.0,), **{figure.key: (value,) for figure in row.figures}}


def every(value: float) -> dict[str, Found]:
    return {row.name: of(row, value) for row in ROWS}


def told(
    *turns: float,
    published: Span = PUBLISHED,
    is_rate: bool = True,
    theirs: Found | None = None,
    others: float = 0.0,
) -> Line:
    return line("what", Figure("it", "of it", published, is_rate=is_rate), turns, theirs, others)


def test_what_a_newcomer_asks_for_is_a_row_and_each_row_has_what_measures_it() -> None:
    assert [
        *("64_on_1", "64_on_4", "64_on_16", "256_on_4", "1_kb", "16_kb", "1_mb", "one_in_flight"),
        *("idle", "beside_3000", "memory", "pull", "start"),
        *("drainer_inserts", "drainer_updates", "drainer_mixed"),
    ] == NAMES
    drainer = {name for name in NAMES if name.startswith("drainer_")}
    assert MEASURES.keys() | drainer == set(NAMES)
    assert MEASURES.keys() >= ONCE
    assert {name.removeprefix("drainer_") for name in drainer} <= LOADS.keys()


def test_every_figure_of_every_row_stands_beside_one_of_go() -> None:
    shown = lines(every(1.0), {}, {})
    assert [(each.what, each.unit) for each in shown] == [
        (row.what, figure.unit) for row in ROWS for figure in row.figures
    ]
    assert all(each.go and each.ratio and each.source == "published" for each in shown)
    units = {row.name: [figure.unit for figure in row.figures] for row in ROWS}
    assert units["64_on_16"] == ["binlogs/s", "µs CPU a binlog"]
    assert units["one_in_flight"] == ["binlogs/s", "ms, p50", "ms, p99", "µs CPU a binlog"]


def test_a_bare_server_of_the_same_run_stands_beside_each_row_of_writes() -> None:
    bare = {row.name: of(row, 4.0) for row in ROWS if row.name in WRITES}
    for shown in lines(every(6.0), {}, bare):
        is_write = "in flight" in shown.what
        assert (shown.bare, shown.to_bare) == (("4.00", "1.50") if is_write else ("", ""))
    without = lines(every(6.0), {}, {"1_mb": Missing("no room")})
    assert [each.what for each in without if "no bare server: no room" in each.source] == (
        ["8 in flight, 1 connection, 1 MB"] * 2
    )


def test_a_row_without_figures_says_why_and_the_others_are_there() -> None:
    found = {**every(1.0), "pull": Missing("the disk is full")}
    shown = [each for each in lines(found, {}, {}) if each.ours == "none"]
    assert [(each.what, each.source) for each in shown] == [
        ("250,000 stored transactions pulled", "no figure: the disk is full")
    ]
    text = table(lines(found, {}, {}))
    assert all(row.what in text for row in ROWS)
    assert "no figure: the disk is full" in text


def test_a_ratio_is_ours_to_theirs_and_says_which_is_better() -> None:
    def beside(ours: float, *theirs: float, is_rate: bool = True) -> str:
        return told(ours, theirs={"it": theirs}, is_rate=is_rate).ratio

    assert beside(300, 100) == "3.00 better"
    assert beside(300, 100, is_rate=False) == "3.00 worse"
    assert beside(50, 100) == "0.50 worse"
    assert beside(50, 100, is_rate=False) == "0.50 better"
    assert beside(150, 100, 150, 200) == "1.00 alike"
    assert beside(104, 100) == "1.04 alike"
    assert beside(50, 0) == ""


def test_published_figures_are_of_another_machine_and_have_no_verdict() -> None:
    assert told(300).ratio == "1.50 to 3.00"
    assert told(50, is_rate=False, published=Span(100, 100)).ratio == "0.50"


def test_what_was_measured_of_go_counts_and_not_what_is_published() -> None:
    here = told(300, theirs={"it": (600.0,)})
    assert (here.go, here.ratio, here.source) == ("600", "0.50 worse", "this run")
    failed = told(300, theirs=Missing("it ended"))
    assert (failed.go, failed.source) == ("100 to 200", "published; here: it ended")


def test_neither_is_better_where_turns_of_both_overlap() -> None:
    theirs: Found = {"it": (300.0, 400.0, 700.0)}
    assert told(150, 200, 320, theirs=theirs).ratio == "0.50 alike"
    assert told(150, 200, 250, theirs=theirs).ratio == "0.50 worse"


def test_a_machine_with_other_work_is_not_compared_with_published_figures() -> None:
    busy = told(50, others=0.62)
    assert busy.ratio == "not told"
    assert busy.source == "published; other work took 62% of the cores"
    assert told(50, others=OTHERS_MAX).ratio == "0.25 to 0.50"
    beside = told(50, theirs={"it": (100.0,)}, others=0.62)
    assert (beside.ratio, beside.source) == ("0.50 worse", "this run")


def test_other_work_is_what_this_process_and_its_children_did_not_do() -> None:
    others = OtherWork(lambda: [])
    subprocess.run([sys.executable, "-c", "sum(range(3_000_000))"], check=True)
    assert 0.0 <= others.share() <= 1.1


def test_figures_have_as_many_digits_as_mean_something() -> None:
    shown = [told(value).ours for value in (12345.6, 99.96, 12.34, 0.456, 0.0123)]
    assert shown == ["12,346", "100.0", "12.3", "0.46", "0.01"]


def test_who_fails_is_left_out_and_the_other_is_measured_in_every_turn(
    tmp_path: Path,
) -> None:
    load = Load(tmp_path / "none")
    ours, theirs = (
        Contestant(load, lambda name: PumpProcess([], 0, tmp_path / name, load)) for _ in range(2)
    )
    asked: list[str] = []

    def measure(one: Contestant) -> Mapping[str, float]:
        asked.append("binlogd" if one is ours else "Go")
        if one is theirs:
            raise RuntimeError("no room")
        return {"it": float(len(asked))}

    found = in_turns("pull", {"binlogd": ours, "Go": theirs}, measure)
    assert asked == ["binlogd", "Go", *["binlogd"] * (TURNS - 1)]
    assert found == {"binlogd": {"it": (1.0, 3.0, 4.0)}, "Go": Missing("no room")}


def test_a_machine_that_is_too_busy_for_a_row_is_no_failure(tmp_path: Path) -> None:
    load = Load(tmp_path / "none")
    one = Contestant(load, lambda name: PumpProcess([], 0, tmp_path / name, load))

    def measure(_: Contestant) -> Mapping[str, float]:
        raise TooBusy("only 12 of 3000/s were written")

    found = in_turns("beside_3000", {"binlogd": one}, measure)
    assert found == {"binlogd": Missing("only 12 of 3000/s were written", is_failure=False)}


def test_rows_that_are_not_asked_for_are_in_the_table_and_say_so(tmp_path: Path) -> None:
    assert Run(frozenset(), None, tmp_path).found() == {
        OURS: dict.fromkeys(NAMES, Missing("not asked for", is_failure=False)),
        GO: {},
        BARE: {},
    }
