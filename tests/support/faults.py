"""What a fault test tells the report: which fault, of what, in how many cases, what was lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

RecordProperty = Callable[[str, object], None]
"""pytest's fixture `record_property`: what it is given stands in the JUnit file."""


class Cases:
    """Counts the cases of one test, each when it has been looked at."""

    def __init__(self) -> None:
        self.number = 0

    def one(self) -> None:
        """One more in which nothing was lost."""
        self.number += 1


@contextmanager
def counted(record_property: RecordProperty, *, fault: str, target: str) -> Iterator[Cases]:
    """The body tells its cases; it fails at the first one in which something is lost."""
    cases, lost = Cases(), 1
    try:
        yield cases
        lost = 0
    finally:
        record_property("fault", fault)
        record_property("target", target)
        record_property("cases", cases.number + lost)
        record_property("lost", lost)
    assert cases.number, "no case was looked at"
