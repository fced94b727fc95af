"""What a batch costs a lake: 10,000 changed keys into a table of a million rows, a column that
comes, and a third of all keys by one task and by several, by kind of lake.

python -m tests.bench.bench_lake [rows]
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from typing import TypeVar

import pyarrow as pa

from binlogd.spark.lake.content import KeySet, LakeContent, TouchedFiles, Upsert, dealt, leave
from binlogd.spark.lake.files import FileWriter, LakeFiles
from binlogd.spark.lake.manifest import LakeTable
from binlogd.spark.lake.moving import Lake
from binlogd.spark.lake.place import KINDS, place_of
from binlogd.spark.lake.rows import KEY_COLUMN, KEY_ID, KeyChanges

T = TypeVar("T")

ROWS, CHANGED, BATCH = 1_000_000, 10_000, 50_000
FILES = 8
"""Of a table of which much changes."""


def main() -> None:
    """Prints one JSON line per figure."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    whole, nothing = rows(list(range(count))), pa.array([], pa.binary())
    scattered = sorted(random.Random(1).sample(range(count), CHANGED))
    recent = list(range(count - CHANGED // 2, count + CHANGED // 2))
    for name in KINDS:
        with tempfile.TemporaryDirectory() as directory:
            tables = opened(name, directory)
            head = tables.kind.create(LakeTable(1, "table-1", 0), whole.schema, "shop.orders", 1)
            batches = whole.to_batches(BATCH)
            head, spent = timed(lambda: tables.append(head, whole.schema, batches, 2))  # noqa: B023 - called here
            report(f"lake_append_{name}", count / spent, "rows/CPU s")
            for which, ids in (("scattered", scattered), ("recent", recent)):
                changes = [KeyChanges(rows(ids), nothing)]
                head, spent = timed(lambda: tables.merge(head, whole.schema, changes, 3))  # noqa: B023 - called here
                report(f"lake_merge_{which}_{name}", spent, "CPU s")
            wider = whole.schema.append(field("note", pa.string(), 77))
            _, spent = timed(lambda: tables.kind.evolve(head, whole.schema, wider, 4))  # noqa: B023 - called here
            report(f"lake_add_column_{name}", spent, "CPU s")
            for tasks in (1, 2, 4):
                report(f"lake_hot_{tasks}_{name}", hot(tables, whole, tasks), "CPU s")


def hot(tables: LakeContent, whole: pa.Table, tasks: int) -> float:
    """A third of the keys of a table change, by so many tasks: of each step what the task costs
    that takes longest, and one commit."""
    schema, head = (
        whole.schema,
        tables.kind.create(LakeTable(2, f"hot-{tasks}", 0), whole.schema, "a.hot", 1),
    )
    files, size = tables.files(head), whole.num_rows // FILES
    for part in range(FILES):
        head = tables.append(head, schema, whole.slice(part * size, size).to_batches(), 2)
    changed = rows(list(range(0, whole.num_rows, 3)))
    share = -(-changed.num_rows // tasks)
    put = [
        timed(lambda: written(files, schema, changed.slice(part * share, share)))  # noqa: B023 - called here
        for part in range(tasks)
    ]
    names = [name for each, _ in put for name in each]
    work = tables.touched(head, *KeySet.of([changed[KEY_COLUMN]]).bounds())
    left = [timed(lambda: gone_through(files, schema, names, each)) for each in dealt(work, tasks)]  # noqa: B023 - called here
    gone, come = ([name for each, _ in left for name in each[at]] for at in (0, 1))
    now, commit = timed(lambda: tables.kind.replace(head, schema, gone, [*names, *come], 3))
    assert now.rows == whole.num_rows
    return max(spent for _, spent in put) + max(spent for _, spent in left) + commit


def written(files: LakeFiles, schema: pa.Schema, part: pa.Table) -> list[str]:
    """New files with these rows."""
    return Upsert(files, schema, [KeyChanges(part, pa.array([], pa.binary()))]).writer.close()


def gone_through(
    files: LakeFiles, schema: pa.Schema, names: list[str], work: TouchedFiles
) -> tuple[list[str], list[str]]:
    """Files that go, and those with what is left of them."""
    keys, writer = KeySet.of(map(files.keys, names)), FileWriter(files, schema)
    return leave(writer, schema, keys, work), writer.close()


def opened(name: str, directory: str) -> LakeContent:
    """A lake without its page."""
    return Lake(place_of(f"{name}:{directory}")).content()


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
