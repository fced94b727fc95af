"""What a batch costs a lake: 10,000 changed keys into a table of a million rows, and a column that
comes, by kind of lake.

python -m tests.bench.bench_lake [rows]
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from typing import TypeVar

import pyarrow as pa

from binlogd.spark.lake.kinds import LakeKind
from binlogd.spark.lake.moving import Lake
from binlogd.spark.lake.place import KINDS, place_of
from binlogd.spark.lake.rows import KEY_COLUMN, KEY_ID, KeyChanges

T = TypeVar("T")

ROWS, CHANGED, BATCH = 1_000_000, 10_000, 50_000


def main() -> None:
    """Prints one JSON line per figure."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    whole, nothing = rows(list(range(count))), pa.array([], pa.binary())
    scattered = sorted(random.Random(1).sample(range(count), CHANGED))
    recent = list(range(count - CHANGED // 2, count + CHANGED // 2))
    for name in KINDS:
        with tempfile.TemporaryDirectory() as directory, closing(opened(name, directory)) as kind:
            head = kind.create(1, "table-1", whole.schema, "shop.orders", 1)
            batches = whole.to_batches(BATCH)
            head, spent = timed(lambda: kind.append(head, whole.schema, batches, 2))  # noqa: B023 - called here
            report(f"lake_append_{name}", count / spent, "rows/CPU s")
            for which, ids in (("scattered", scattered), ("recent", recent)):
                changes = [KeyChanges(rows(ids), nothing)]
                head, spent = timed(lambda: kind.merge(head, whole.schema, changes, 3))  # noqa: B023 - called here
                report(f"lake_merge_{which}_{name}", spent, "CPU s")
            wider = whole.schema.append(field("note", pa.string(), 77))
            _, spent = timed(lambda: kind.evolve(head, whole.schema, wider, 4))  # noqa: B023 - called here
            report(f"lake_add_column_{name}", spent, "CPU s")


def opened(name: str, directory: str) -> LakeKind:
    """A lake without its page."""
    return Lake(place_of(f"{name}:{directory}")).kind()


def rows(ids: list[int]) -> pa.Table:
    """Five columns and the key."""
    columns = {
        "id": pa.array(ids, pa.int64()),
        "a": pa.array([each % 1000 for each in ids], pa.int32()),
        "b": pa.array([f"some text {each % 9973}" for each in ids]),
        "c": pa.array([f"{each % 10_000}.25" for each in ids]).cast(pa.decimal128(12, 2)),
        "d": pa.array([each * 1000 for each in ids], pa.int64()).cast(pa.timestamp("us")),
        KEY_COLUMN: pa.array([each.to_bytes(8, "big") for each in ids], pa.binary()),
    }
    numbers = [*range(1, len(columns)), KEY_ID]
    schema = pa.schema(
        field(name, column.type, number)
        for number, (name, column) in zip(numbers, columns.items(), strict=True)
    )
    return pa.Table.from_arrays(list(columns.values()), schema=schema)


def field(name: str, type_: pa.DataType, number: int) -> pa.Field:
    """A column with its id."""
    return pa.field(name, type_, metadata={"PARQUET:field_id": str(number)})


def timed(act: Callable[[], T]) -> tuple[T, float]:
    """CPU seconds of this process."""
    begin = time.process_time()
    return act(), time.process_time() - begin


def report(bench: str, value: float, unit: str) -> None:
    """One figure."""
    print(json.dumps({"bench": bench, "value": round(value, 3), "unit": unit}), flush=True)


if __name__ == "__main__":
    main()
