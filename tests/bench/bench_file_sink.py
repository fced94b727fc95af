"""The file sink: from row bytes to synced files, and back, in rows/s and CPU a row.

One JSON line per figure; the files lie in the directory for temporary files.
Run: python -m tests.bench.bench_file_sink
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter, process_time

from binlogd.drainer.ddl.edits import Dialect
from binlogd.drainer.files.sink import FileSink
from binlogd.drainer.filtering.filter import TableFilter
from binlogd.drainer.messages.pb import PbReader
from binlogd.drainer.messages.pb_rows import ChangeEncoder
from binlogd.drainer.messages.pb_write import dml_binlog
from binlogd.drainer.translate import Translator
from binlogd.drainer.txn import Dml, Txn
from binlogd.host.clock import WallClock
from binlogd.host.disk import PosixDisk
from binlogd.tidb.model import jobs_from_json
from binlogd.tidb.schema import SchemaTracker
from tests.bench.load import Load, inserts, mixed, updates
from tests.support.decoding import decoded
from tests.support.pb_reader import file_records

ROWS = 50_000
ROUNDS = 3
CALL_TXNS = 200


def report(bench: str, value: float, unit: str, **more: float) -> None:
    print(json.dumps({"bench": bench, "value": round(value, 3), "unit": unit, **more}))


def txns_of(load: Load) -> list[Txn]:
    """What the sink is given, with the schema behind its tables."""
    jobs = {job.id: job for job in jobs_from_json(load.history)}
    schema = SchemaTracker()
    schema.load(jobs.values())
    translator = Translator(schema, TableFilter(), Dialect.FILE)
    for binlog in load.setup:
        translator.translate(decoded(binlog, jobs))
    return [translator.translate(decoded(binlog)) for binlog in load.binlogs]


def encode(load: Load, txns: Sequence[Txn]) -> None:
    """CPU from row bytes to the payload of a record."""
    encoders: dict[int, ChangeEncoder] = {}
    best_s = min(_encode_s(txns, encoders) for _ in range(ROUNDS))
    report(f"pb_encode_{load.name}", best_s * 1e6 / load.rows, "us CPU/row")


def _encode_s(txns: Sequence[Txn], encoders: dict[int, ChangeEncoder]) -> float:
    begun = process_time()
    for txn in txns:
        assert isinstance(txn, Dml)
        events: list[bytes] = []
        for change in txn.changes:
            encoder = encoders.get(change.table.info.id)
            if encoder is None:
                encoder = encoders[change.table.info.id] = ChangeEncoder(change.table)
            events += encoder.events(change.mutation)
        dml_binlog(txn.commit_ts, events)
    return process_time() - begun


async def write(load: Load, txns: Sequence[Txn], directory: Path) -> None:
    """The whole sink: encoding, queue, groups, syncs."""
    disk = PosixDisk(threads=2)
    sink = FileSink(directory / "out", directory / "savepoint", disk=disk, clock=WallClock())
    await sink.open()
    begun, begun_cpu = perf_counter(), process_time()
    async with asyncio.TaskGroup() as group:
        group.create_task(sink.run())
        for at in range(0, len(txns), CALL_TXNS):
            await sink.submit(txns[at : at + CALL_TXNS])
        await sink.flush()
        seconds, cpu = perf_counter() - begun, process_time() - begun_cpu
        await sink.close()
    disk.close()
    cpu_us = round(cpu * 1e6 / load.rows, 3)
    report(f"file_sink_{load.name}", load.rows / seconds, "rows/s", cpu_us_per_row=cpu_us)


def read(load: Load, directory: Path) -> None:
    """Every record verified and decoded to values by name."""
    begun, reader = perf_counter(), PbReader()
    rows = sum(
        sum(1 for _ in reader.named(record.payload).rows()) for _, record in file_records(directory)
    )
    assert rows == load.rows
    report(f"file_log_read_{load.name}", rows / (perf_counter() - begun), "rows/s")


async def measure() -> None:
    """All figures of the three loads."""
    loads = (inserts(ROWS), updates(ROWS, table_rows=ROWS), mixed(ROWS, table_rows=2_000))
    for load in loads:
        txns = txns_of(load)
        encode(load, txns)
        with tempfile.TemporaryDirectory() as name:
            await write(load, txns, Path(name))
            read(load, Path(name) / "out")


def main() -> None:
    """Measures and prints."""
    asyncio.run(measure())


if __name__ == "__main__":
    main()
