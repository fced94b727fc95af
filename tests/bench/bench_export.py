"""Snapshots by Spark: start, and row changes per second from the log to synced Parquet.

    python -m tests.bench.bench_export [row changes]

The same transformation by this process alone, with the same reader, decoder and writer but without
Spark, stands beside it: `ratio` is Spark's rate over that one. Spark uses two cores, the other one.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from binlogd.snapshot import job, reader, writer
from binlogd.snapshot.catalog import DdlBinlog, catalog
from binlogd.snapshot.files import Target
from binlogd.snapshot.jobdir import pinned
from binlogd.snapshot.rowkey import Op
from binlogd.snapshot.session import session
from binlogd.snapshot.spec import ExportSpec, Segment, SessionSpec, TypeOptions
from binlogd.tidb.kinds import FLAG_NOT_NULL, FLAG_PRIMARY_KEY, Tp
from binlogd.tidb.model import Column, FieldType, Table, jobs_from_json, table_to_json
from binlogd.tidb.row import Value, encode_delete, encode_insert, encode_update
from binlogd.tso import Tso
from binlogd.wire.peek import Mutation, commit_binlog, encode_mutations, prewrite_binlog
from tests.data_directory import write_log

ROWS_PER_TRANSACTION = 5
CHANGES = 200_000


def main() -> None:
    """Prints one JSON line per figure."""
    changes = int(sys.argv[1]) if len(sys.argv) > 1 else CHANGES
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[2])
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        small, large = directory / "small", directory / "large"
        write_log(small, log(1_000))
        write_log(large, log(changes), segment_bytes=500 << 20)
        history = directory / "history.json"
        history.write_bytes(HISTORY)

        began = time.perf_counter()
        spark = session(SessionSpec(scratch=str(directory)))
        report("export_session_start", time.perf_counter() - began, "s")

        def export(data_dir: Path, name: str) -> float:
            with pinned(data_dir, directory / name) as found:
                begin = time.perf_counter()
                done = job.build(
                    spark, spec(found.segments, history, directory / name / "out"), lambda _: None
                )
                assert len(done.tables) == 1
                return time.perf_counter() - begin

        report("export_first", export(small, "first"), "s")
        report("export_second", export(small, "second"), "s")
        by_spark = changes / export(large, "large")
        spark.stop()
        with pinned(large, directory / "alone") as found:
            staging = directory / "alone" / "out"
            begin = time.perf_counter()
            alone(found.segments, staging)
            by_python = changes / (time.perf_counter() - begin)
        report("export_without_spark", by_python, "changes/s")
        report("export", by_spark, "changes/s", ratio=round(by_spark / by_python, 2))


def report(bench: str, value: float, unit: str, **more: Any) -> None:
    """One figure."""
    print(json.dumps({"bench": bench, "value": round(value, 2), "unit": unit, **more}))


def spec(segments: tuple[Segment, ...], history: Path, staging: Path) -> ExportSpec:
    """As `binlogd export` would ask."""
    staging.mkdir(parents=True)
    return ExportSpec(
        segments=segments,
        schema_history=str(history),
        as_of=0,
        known_resolved_ts=0,
        out=str(staging.parent),
        staging=str(staging),
        scratch=str(staging),
        ignore_schemas=("mysql",),
    )


def alone(segments: tuple[Segment, ...], staging: Path) -> None:
    """The same snapshot in one process: the last change per key in a dict, then the same writer."""
    parts = reader.slices(segments, 16 << 20)
    commits: dict[int, int] = {}
    for part in parts:
        for batch in reader.heads(part):
            pairs = zip(
                *(batch[name].to_pylist() for name in ("start_ts", "commit_ts")), strict=True
            )
            commits.update(pair for pair in pairs if pair[1])
    known = catalog(jobs_from_json(HISTORY), DDL, log_begins=Tso(1), ignore_schemas=("mysql",))
    handles = {table_id: plan.handle for table_id, plan in known.tables.items()}
    wanted = reader.Wanted(handles, frozenset(), 1 << 62)
    newest: dict[bytes, tuple[tuple[int, int], int, int, int, bytes, bytes]] = {}
    for part in parts:
        for batch in reader.events(part, wanted):
            columns = (column.to_pylist() for column in batch.columns)
            for table_id, key, start_ts, seq, op, version, row in zip(*columns, strict=True):
                order = commits[start_ts], seq
                if key not in newest or newest[key][0] < order:
                    newest[key] = order, op, table_id, version, row, key
    target = Target(str(staging), TypeOptions(), 5_000_000)
    list(writer.write(_batches(newest.values()), dict(known.tables), known.tracker, target, "0"))


def _batches(
    newest: Iterable[tuple[tuple[int, int], int, int, int, bytes, bytes]],
) -> Iterator[pa.RecordBatch]:
    kept = [each for each in newest if each[1] == Op.PUT]
    names = ("commit_ts", "op", "table_id", "schema_version", "row", "key")
    for at in range(0, len(kept), 10_000):
        rows = [(order[0], *rest) for order, *rest in kept[at : at + 10_000]]
        yield pa.RecordBatch.from_arrays(
            [pa.array(column) for column in zip(*rows, strict=True)], names=list(names)
        )


# --- the log -------------------------------------------------------------------------------

KINDS = (
    ("id", Tp.LONGLONG, FLAG_PRIMARY_KEY | FLAG_NOT_NULL, 20, -1, "binary"),
    ("name", Tp.VARCHAR, 0, 40, -1, "utf8mb4"),
    ("amount", Tp.NEW_DECIMAL, 0, 12, 2, "binary"),
    ("at", Tp.DATETIME, 0, 23, 3, "binary"),
    ("state", Tp.LONG, 0, 11, -1, "binary"),
    ("note", Tp.VARCHAR, 0, 200, -1, "utf8mb4"),
)
TABLE = Table(
    100,
    "orders",
    tuple(
        Column(number, name, number - 1, FieldType(tp, flag, flen, decimal, charset))
        for number, (name, tp, flag, flen, decimal, charset) in enumerate(KINDS, 1)
    ),
    pk_is_handle=True,
)
JOBS = (
    {"id": 1, "type": 1, "schema_id": 2, "binlog": {"SchemaVersion": 1}, "schema_name": "shop"},
    {
        "id": 2,
        "type": 3,
        "schema_id": 2,
        "table_id": 100,
        "binlog": {"SchemaVersion": 2, "TableInfo": json.loads(table_to_json(TABLE))},
    },
)
HISTORY = json.dumps([{"state": 6, "schema_state": 5, **job} for job in JOBS]).encode()
DDL = [DdlBinlog(Tso(10 * number), number, 5, "") for number in (1, 2)]


def log(changes: int) -> Iterator[bytes]:
    """Inserts, updates and deletes 5 : 4 : 1, a fifth of the updates on a hundredth of the rows."""
    rng = random.Random(1)
    held: list[dict[int, Value]] = []
    for binlog in DDL:
        start_ts = Tso(binlog.commit_ts - 1)
        yield prewrite_binlog(
            start_ts, ddl_query=b"-", ddl_job_id=binlog.job_id, ddl_schema_state=5
        )
        yield commit_binlog(
            start_ts,
            binlog.commit_ts,
            ddl_query=b"-",
            ddl_job_id=binlog.job_id,
            ddl_schema_state=5,
        )
    ts = 100
    for first in range(0, changes, ROWS_PER_TRANSACTION):
        mutation = Mutation(100, [], [], [], b"")
        kinds = bytearray()
        for number in range(first, min(changes, first + ROWS_PER_TRANSACTION)):
            kinds.append(_change(rng, held, number, mutation))
        whole = Mutation(100, mutation.inserted, mutation.updated, mutation.deleted, bytes(kinds))
        ts += 10
        yield prewrite_binlog(Tso(ts), prewrite_value=encode_mutations(2, [whole]))
        yield commit_binlog(Tso(ts), Tso(ts + 5))


def _change(
    rng: random.Random, held: list[dict[int, Value]], number: int, mutation: Mutation
) -> int:
    chance = rng.random()
    if chance < 0.5 or len(held) < 10:
        row: dict[int, Value] = {
            1: number,
            2: b"customer %d" % rng.randrange(10_000),
            3: f"{rng.randrange(1_000_000)}.{rng.randrange(100):02d}",
            4: f"2024-05-{rng.randrange(1, 29):02d} 12:{rng.randrange(60):02d}:00.123",
            5: rng.randrange(5),
            6: b"n" * rng.randrange(60),
        }
        held.append(row)
        mutation.inserted.append(encode_insert(TABLE, row, handle=number))
        return 0
    place = rng.randrange(len(held) if rng.random() < 0.8 else max(1, len(held) // 100))
    old = held[place]
    handle = old[1]
    assert isinstance(handle, int)
    if chance < 0.9:
        held[place] = {**old, 5: rng.randrange(5), 3: f"{rng.randrange(1000)}.50"}
        mutation.updated.append(encode_update(TABLE, old, held[place], handle=handle))
        return 1
    held[place] = held[-1]
    held.pop()
    mutation.deleted.append(encode_delete(TABLE, old, handle=handle))
    return 4


if __name__ == "__main__":
    main()
