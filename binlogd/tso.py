"""TSO: TiDB's 64-bit timestamp, physical milliseconds since 1970 << 18 | logical counter.

Source: PD's timestamp oracle; client-go oracle/oracle.go.
"""

from __future__ import annotations

from typing import Final, NewType

Tso = NewType("Tso", int)
"""A start_ts or commit_ts. Never a bare int in a signature."""

LOGICAL_BITS: Final = 18
NO_TS: Final = Tso(0)
"""Before everything."""
MAX_TS: Final = Tso((1 << 63) - 1)
"""After everything."""


def compose(physical_ms: int, logical: int = 0) -> Tso:
    """The timestamp of a wall time in milliseconds."""
    return Tso(physical_ms << LOGICAL_BITS | logical)


def physical_ms(ts: Tso) -> int:
    """Wall time of a timestamp, in milliseconds since 1970."""
    return ts >> LOGICAL_BITS


def logical(ts: Tso) -> int:
    """Which of its millisecond a timestamp is, from 0."""
    return ts & (1 << LOGICAL_BITS) - 1


def behind_s(position: Tso, newest: Tso) -> float | None:
    """Upstream seconds from one timestamp to another; 0 only where nothing lies between them.

    None from NO_TS to a later one: before everything is no time, and least of all 1970.
    """
    if position >= newest:
        return 0.0
    if position == NO_TS:
        return None
    return max(0.001, (physical_ms(newest) - physical_ms(position)) / 1000)


def plus_ms(ts: Tso, delta_ms: int) -> Tso:
    """The timestamp moved by some milliseconds, never below zero."""
    return Tso(max(0, ts + (delta_ms << LOGICAL_BITS)))
