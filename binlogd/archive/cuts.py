"""Where to cut a stretch of commit_ts into parts of about as many transactions, by what the catalog
of an archive says; pure.

A segment says how much it has, from when to when, and what it had seen at its sync points. Between
two of these, transactions count as evenly spread: the parts are about as large as asked, never
wrong, because any cut between two commit_ts is a right one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from binlogd.log.segment_index import SegmentIndex
from binlogd.tso import Tso

GRAINS = 16
"""A part is put together of so many grains, or more."""

_Grain = tuple[int, float]
"""Where it ends, and how many transactions it stands for."""


def cuts(segments: Iterable[SegmentIndex], after: Tso, upto: Tso, every: int) -> list[Tso]:
    """Where parts of about `every` transactions end; ascending, the last is `upto`."""
    grain = max(1.0, every / GRAINS)
    grains = sorted(each for segment in segments for each in _grains(segment, grain))
    found: list[Tso] = []
    held = 0.0
    for ts, transactions in grains:
        if not after < ts < upto:
            continue
        held += transactions
        if held >= every and (not found or ts > found[-1]):
            found.append(Tso(ts))
            held = 0.0
    return [*found, upto]


def transactions(segments: Iterable[SegmentIndex], after: Tso, upto: Tso) -> int:
    """About how many committed in (after, upto]."""
    found = 0.0
    for begin, end, count in (each for segment in segments for each in _stretches(segment)):
        width = end - begin or 1  # one that is a moment ends at it
        found += count * max(0, min(end, upto) - max(end - width, after)) / width
    return round(found)


def _grains(segment: SegmentIndex, size: float) -> Iterator[_Grain]:
    for begin, end, transactions in _stretches(segment):
        count = max(1, round(transactions / size))
        for number in range(1, count + 1):
            yield begin + (end - begin) * number // count, transactions / count


def _stretches(segment: SegmentIndex) -> Iterator[tuple[int, int, float]]:
    """From when to when, and how many transactions."""
    low, high = segment.min_ts, segment.max_ts
    knots = [(point.offset, min(max(point.seen_ts, low), high)) for point in segment.sync]
    knots = [*(knots or [(0, low)]), (segment.size_bytes, high)]
    for (offset, begin), (next_offset, end) in pairwise(knots):
        share = (next_offset - offset) / max(1, segment.size_bytes)
        if share > 0:
            yield begin, end, segment.transactions * share
