"""What the table of `make bench` shows: its rows, the Go programs' published figures, and the text.

Invariant. Every row is shown, and one without figures says why. Why it holds: `lines` goes through
ROWS, and what was found of a row is either a value for each of its figures or a reason.

Published figures are of two cores with the Go client, the servers and MariaDB on them, of another
day; the range is that of several runs. Another machine may be three times as slow as those: what a
bare server in Go (tests/interop/load/bare.go) does in the same run says how a write stands there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

ALIKE = 0.05
"""Of a figure that was measured once: two runs of one program differ by as much."""


class Span(NamedTuple):
    """From the lowest to the highest of several runs."""

    low: float
    high: float


class Figure(NamedTuple):
    """One line of a row."""

    key: str
    unit: str
    published: Span
    is_rate: bool = False
    """More is better; of everything else, less."""


class Row(NamedTuple):
    """What is measured in one go; `name` asks for it alone."""

    name: str
    what: str
    figures: tuple[Figure, ...]


class Missing(NamedTuple):
    """Why there are no figures."""

    reason: str
    is_failure: bool = True
    """Not where nobody asked, or where the machine is too busy for what a row is about."""


OTHERS_MAX = 0.15
"""Of the machine: where other work took more, nothing is compared with published figures. Those
are of runs in which it took less."""
OTHERS = "others"
"""Which share of the machine other work took meanwhile, beside the figures of a row."""

Found = Mapping[str, tuple[float, ...]] | Missing
"""Of one row and one program: the values of all turns for each key, or why there are none."""


class Line(NamedTuple):
    """One line, as it is printed."""

    what: str
    unit: str
    ours: str
    go: str
    ratio: str
    bare: str
    to_bare: str
    source: str


def _writes(name: str, what: str, rate: Span, cpu_us: Span, *more: Figure) -> Row:
    figures = (Figure("per_s", "binlogs/s", rate, is_rate=True), *more)
    return Row(name, what, (*figures, Figure("cpu_us", "µs CPU a binlog", cpu_us)))


def _waits(name: str, beside: str, ack: tuple[Span, Span], lag: tuple[Span, Span]) -> Row:
    return Row(
        name,
        f"a transaction each 5 ms, {beside}",
        (
            Figure("ack_p50_ms", "ms to acknowledge, p50", ack[0]),
            Figure("ack_p99_ms", "ms to acknowledge, p99", ack[1]),
            Figure("lag_p50_ms", "ms commit to puller, p50", lag[0]),
            Figure("lag_p99_ms", "ms commit to puller, p99", lag[1]),
        ),
    )


class Drained(NamedTuple):
    """Of a Go Drainer: rows/s, and its own CPU for a row."""

    per_s: Span
    cpu_us: Span


def _drainer(name: str, what: str, default: Drained, merging: Drained) -> Row:
    return Row(
        f"drainer_{name}",
        f"{what}, into MariaDB",
        (
            Figure("per_s", "rows/s", default.per_s, is_rate=True),
            Figure("cpu_us", "µs CPU a row", default.cpu_us),
            Figure("per_s", "rows/s; Go: merging", merging.per_s, is_rate=True),
            Figure("cpu_us", "µs CPU a row; Go: merging", merging.cpu_us),
        ),
    )


ROWS = (
    _writes("64_on_1", "64 in flight, 1 connection, 200 B", Span(20_400, 24_400), Span(37, 44)),
    _writes("64_on_4", "64 in flight, 4 connections, 200 B", Span(19_700, 22_500), Span(40, 46)),
    _writes("64_on_16", "64 in flight, 16 connections, 200 B", Span(18_500, 18_800), Span(49, 49)),
    _writes("256_on_4", "256 in flight, 4 connections, 200 B", Span(26_400, 27_700), Span(33, 35)),
    _writes("1_kb", "64 in flight, 1 connection, 1 KB", Span(17_900, 20_600), Span(41, 49)),
    _writes("16_kb", "64 in flight, 1 connection, 16 KB", Span(9_000, 10_100), Span(78, 85)),
    _writes("1_mb", "8 in flight, 1 connection, 1 MB", Span(384, 396), Span(1_680, 1_830)),
    _writes(
        "one_in_flight",
        "1 in flight, 200 B",
        Span(1_880, 2_130),
        Span(330, 375),
        Figure("p50_ms", "ms, p50", Span(0.44, 0.5)),
        Figure("p99_ms", "ms, p99", Span(0.8, 1.0)),
    ),
    _waits(
        "idle",
        "nothing beside",
        (Span(0.7, 0.9), Span(1.7, 5.5)),
        (Span(51, 51), Span(100, 100)),
    ),
    _waits(
        "beside_3000",
        "3,000 a second beside",
        (Span(1.2, 1.2), Span(5.6, 6.6)),
        (Span(59, 59), Span(110, 110)),
    ),
    Row("memory", "500,000 binlogs written", (Figure("mb", "MB at the most", Span(245, 277)),)),
    Row(
        "pull",
        "250,000 stored transactions pulled",
        (
            Figure("per_s", "transactions/s", Span(84_000, 89_000), is_rate=True),
            Figure("cpu_us", "µs CPU a transaction", Span(13, 13)),
        ),
    ),
    Row(
        "start",
        "500,000 stored, kill -9 at full speed",
        (Figure("seconds", "s until a write is accepted", Span(0.8, 0.96)),),
    ),
    _drainer(
        "inserts",
        "inserts, 10 a transaction",
        Drained(Span(20_500, 23_100), Span(34, 34)),
        Drained(Span(36_100, 36_100), Span(18, 18)),
    ),
    _drainer(
        "updates",
        "updates, 5 a transaction",
        Drained(Span(14_500, 14_500), Span(44, 44)),
        Drained(Span(24_900, 25_600), Span(24, 31)),
    ),
    _drainer(
        "mixed",
        "mixed (20/60/20), 4 a transaction",
        Drained(Span(12_500, 13_000), Span(58, 58)),
        Drained(Span(28_000, 28_000), Span(26, 26)),
    ),
)
"""In the order in which they are measured."""


def lines(
    found: Mapping[str, Found], beside: Mapping[str, Found], bare: Mapping[str, Found]
) -> list[Line]:
    """Every row, beside what was found of the Go program, or what is published of it, and beside
    what a bare server took."""
    told: list[Line] = []
    for row in ROWS:
        ours = found[row.name]
        if isinstance(ours, Missing):
            told.append(NOTHING._replace(what=row.what, source=f"no figure: {ours.reason}"))
            continue
        theirs, others = beside.get(row.name), max(ours[OTHERS])
        least = bare.get(row.name)
        for each in row.figures:
            one = line(row.what, each, ours[each.key], theirs, others)
            told.append(one if least is None else _beside_bare(one, each, ours[each.key], least))
    return told


def _beside_bare(one: Line, figure: Figure, turns: tuple[float, ...], least: Found) -> Line:
    """With what a bare server took in the same turns."""
    if isinstance(least, Missing):
        return one._replace(source=f"{one.source}; no bare server: {least.reason}")
    bare = Span(median(least[figure.key]), median(least[figure.key]))
    ratio = _rounded(median(turns) / bare.low) if bare.low else ""
    return one._replace(bare=_told(bare), to_bare=ratio)


def line(
    what: str, figure: Figure, turns: tuple[float, ...], theirs: Found | None, others: float
) -> Line:
    """One figure; without one of theirs that was measured, beside what is published."""
    ours = _told(Span(median(turns), median(turns)))
    if theirs is not None and not isinstance(theirs, Missing):
        of_go = theirs[figure.key]
        go = Span(median(of_go), median(of_go))
        ratio = _ratio(turns, go, Span(min(of_go), max(of_go)), figure)
        return Line(what, figure.unit, ours, _told(go), ratio, "", "", "this run")
    source = "published" if theirs is None else f"published; here: {theirs.reason}"
    ratio = _ratios(turns, figure.published)
    if others > OTHERS_MAX:
        ratio, source = "not told", f"{source}; other work took {others:.0%} of the cores"
    return Line(what, figure.unit, ours, _told(figure.published), ratio, "", "", source)


def _ratio(turns: tuple[float, ...], go: Span, go_turns: Span, figure: Figure) -> str:
    """Of our median to theirs, and which is better, unless turns of both overlap."""
    if not go.low:
        return ""  # too short for the clock that measured it
    value, ratios = median(turns), _ratios(turns, go)
    if min(turns) <= go_turns.high * (1 + ALIKE) and max(turns) >= go_turns.low * (1 - ALIKE):
        return f"{ratios} alike"
    return f"{ratios} {'better' if (value > go.high) == figure.is_rate else 'worse'}"


def _ratios(turns: tuple[float, ...], go: Span) -> str:
    """Without a verdict: to published figures there is none, as they are of another machine."""
    return _told(Span(median(turns) / go.high, median(turns) / go.low))


def _told(span: Span) -> str:
    low, high = map(_rounded, span)
    return low if low == high else f"{low} to {high}"


def _rounded(value: float) -> str:
    for least, places in ((100, 0), (10, 1), (0.1, 2)):
        if value >= least:
            return f"{value:,.{places}f}"
    return f"{value:.1g}"


HEAD = Line("what", "unit", "binlogd", "Go", "ratio", "bare", "ratio to it", "Go's figure")
NOTHING = Line("", "", "none", "", "", "", "", "")
_RIGHT = frozenset({"ours", "go", "bare"})


def table(told: Sequence[Line]) -> str:
    """In columns; what several lines have in common stands in the first of them."""
    every = [HEAD, *told]
    widths = [max(map(len, column)) for column in zip(*every, strict=True)]
    rows, before = [], ""
    for each in every:
        shown = each._replace(what="") if each.what == before else each
        before = each.what
        cells = [
            cell.rjust(width) if name in _RIGHT else cell.ljust(width)
            for cell, width, name in zip(shown, widths, Line._fields, strict=True)
        ]
        rows.append("  ".join(cells).rstrip())
    return "\n".join([rows[0], "  ".join("-" * width for width in widths), *rows[1:]])
