"""What a mark stands for is on the disk before the mark is: the machine may stop at any call."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support import strace

ROOT = Path(__file__).parents[3]
PROGRAM = """
import sys
from pathlib import Path
from binlogd.snapshot.log.rowkey import handle_of
from binlogd.snapshot.spec import TypeOptions
from binlogd.snapshot.tables.catalog import TablePlan
from binlogd.snapshot.writing.changed import ChangedKeys, GoneRows
from binlogd.snapshot.writing.files import FileTarget, TableFiles
from binlogd.tidb.model import Table
import pyarrow as pa
work = Path(sys.argv[1])
(work / "state" / "parts").mkdir(parents=True)
target = FileTarget(str(work / "staging"), TypeOptions(), 10, state=str(work / "state"))
info = Table(7, "t", ())
keys = ChangedKeys(str(work / "changed"), TablePlan("s", info, handle_of(info), (), (), ()), "0.0")
gone = GoneRows(str(work / "gone"), 7, "0.0")
schema = pa.schema([("a", pa.int64())])
files = TableFiles(7, "s.t", schema, target, "0.0", key_type=pa.int64())
rows = pa.RecordBatch.from_arrays([pa.array([1])], schema=schema)
files.add(rows, pa.array([1]), 8)
done = files.close()
keys.close()
gone.close()
target.finish(7, "0.0", done)
"""
_CALL = re.compile(r"(fsync|rename)\((.*)\)\s+= 0")
_SYNCED = re.compile(r"\d+<([^>]+)>")
_RENAMED = re.compile(r'"([^"]+)", "([^"]+)"')


def test_files_and_keys_of_a_part_are_synced_before_its_mark(tmp_path: Path) -> None:
    strace.skip_without()
    trace = tmp_path / "trace"
    command = [*strace.UNDER, "-y", "-s", "4096", "-o", str(trace), "--trace=fsync,rename"]
    work = tmp_path / "work"
    subprocess.run([*command, sys.executable, "-c", PROGRAM, str(work)], cwd=ROOT, check=True)
    synced: set[str] = set()
    for line in trace.read_text().splitlines():
        call = _CALL.search(line)
        if call is None:
            continue
        if call[1] == "fsync":
            synced.update(_SYNCED.findall(call[2]))
            continue
        (old, new) = _RENAMED.findall(call[2])[0]
        assert old in synced
        synced.add(new)
        if "/parts/" in new:
            break
    else:
        raise AssertionError("there is no mark")
    there = {str(path) for path in work.rglob("*.parquet")}
    assert len(there) == 4
    assert there <= synced
    assert {str(work / "changed/7"), str(work / "gone/7")} <= synced
