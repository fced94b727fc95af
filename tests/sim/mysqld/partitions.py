"""In which partition a row lies: RANGE, LIST and HASH of one column that holds integers."""

from __future__ import annotations

from typing import Any

from tests.sim.mysqld.errors import ServerError
from tests.sim.mysqld.lexing import NotSimulated
from tests.sim.mysqld.tables import Definition, Partitioning, Values


def check(definition: Definition, values: Values) -> None:
    """Raises ServerError for a row that no partition takes."""
    if definition.partitioning is not None and partition_of(definition, values) is None:
        value = _value(definition, definition.partitioning, values)
        raise ServerError(1526, f"Table has no partition for value {value}")


def partition_of(definition: Definition, values: Values) -> str | None:
    """The name of a row's partition."""
    partitioning = definition.partitioning
    assert partitioning is not None
    value = _value(definition, partitioning, values)
    if value is not None and not isinstance(value, int):
        raise NotSimulated(f"partitions by {value!r}, which is no integer")
    names = partitioning.names
    if partitioning.kind == "HASH":
        return names[abs(value or 0) % len(names)]
    for name, bound in zip(names, partitioning.bounds, strict=True):
        if partitioning.kind == "LIST":
            if value in bound:
                return name
        elif bound is None or value is None or value < bound:
            return name
    return None


def _value(definition: Definition, partitioning: Partitioning, values: Values) -> Any:
    at = definition.position(partitioning.column)
    assert at is not None
    return values[at]
