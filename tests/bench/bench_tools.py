"""Reading binlogs with the tools: rows a second, CPU a row, and memory for logs and transactions.

One JSON line per figure. Run: python -m tests.bench.bench_tools
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter, process_time

from binlogd.drainer.files.log import encode_record, file_name
from binlogd.drainer.messages.pb_rows import ChangeEncoder
from binlogd.drainer.messages.pb_write import dml_binlog
from binlogd.drainer.mysql.named_sql import NamedTable
from binlogd.drainer.rows.shape import DownstreamColumn, DownstreamKey, DownstreamTable
from binlogd.drainer.txn import Dml
from binlogd.tools.reading import find_sources, transactions
from binlogd.tools.shown import JsonWriter
from binlogd.tools.transaction import CommitWindow, Meter
from binlogd.tso import Tso
from tests.bench.bench_file_sink import txns_of
from tests.bench.load import Load, inserts, mixed

ROWS = 20_000
LARGE_ROWS = 100_000


def report(bench: str, value: float, unit: str, **more: float) -> None:
    print(json.dumps({"bench": bench, "value": round(value, 3), "unit": unit, **more}))


def write_files(load: Load, directory: Path, *, as_one: bool) -> int:
    """A log of the load, as many transactions or as a single one: its size in bytes."""
    directory.mkdir()
    encoders: dict[int, ChangeEncoder] = {}
    events: list[bytes] = []
    path = directory / file_name(0, 0)
    last_ts = Tso(1)
    with path.open("wb") as stream:
        for txn in txns_of(load):
            assert isinstance(txn, Dml)
            for change in txn.changes:
                encoder = encoders.setdefault(id(change.table), ChangeEncoder(change.table))
                events += encoder.events(change.mutation)
            last_ts = txn.commit_ts
            if not as_one:
                stream.write(encode_record(dml_binlog(last_ts, events)))
                events.clear()
        if as_one:
            stream.write(encode_record(dml_binlog(last_ts, events)))
    return path.stat().st_size


def dump(directory: Path) -> int:
    """Rows written as JSON, to nowhere."""
    rows = 0

    def write(line: str) -> None:
        nonlocal rows
        rows += 1

    writer = JsonWriter(write)
    for transaction in transactions(find_sources([directory]), CommitWindow(), meter=Meter()):
        writer.transaction(transaction, transaction.rows())
    return rows


def statements(directory: Path) -> int:
    """Bytes of SQL that a replay makes of a log."""
    columns = tuple(
        DownstreamColumn(name, "varchar", "utf8mb4_bin", False, False)
        for name in ("id", "k", "c", "pad", "v")
    )
    table = DownstreamTable(columns, (DownstreamKey("PRIMARY", ("id",), False),))
    writer = NamedTable("d", "t", table, is_safe=True)
    return sum(
        len(piece.item)
        for transaction in transactions(find_sources([directory]), CommitWindow(), meter=Meter())
        for row in transaction.rows()
        for piece in writer.pieces(row)
    )


def high_water() -> int:
    """The largest memory that this process has had, in KiB."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])


def peak_mb(directory: Path) -> float:
    """The memory of a process that dumps a log, over that of one that dumps nothing."""
    code = (
        "import sys; from pathlib import Path;"
        "from tests.bench.bench_tools import dump, high_water;"
        "rows = dump(Path(sys.argv[1])) if len(sys.argv) > 1 else 0;"
        "print(high_water())"
    )
    with_it, without = (
        int(
            subprocess.run(
                [sys.executable, "-c", code, *words], check=True, capture_output=True
            ).stdout
        )
        for words in ([str(directory)], [])
    )
    return (with_it - without) / 1024


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        for load in (inserts(ROWS), mixed(ROWS)):
            directory = Path(temporary) / load.name
            write_files(load, directory, as_one=False)
            for name, work in (("dump_json", dump), ("replay_sql", statements)):
                begun, cpu = perf_counter(), process_time()
                work(directory)
                cpu_us = (process_time() - cpu) * 1e6 / load.rows
                rate = load.rows / (perf_counter() - begun)
                report(f"{name}_{load.name}", rate, "rows/s", cpu_us_per_row=round(cpu_us, 2))
        many = inserts(LARGE_ROWS)
        for name, as_one in (("log", False), ("transaction", True)):
            directory = Path(temporary) / name
            size_mb = write_files(many, directory, as_one=as_one) / 1e6
            report(f"dump_memory_{name}", peak_mb(directory), "MB", size_mb=round(size_mb, 1))


if __name__ == "__main__":
    main()
