"""`few`: the recording `keys` without tables that are like others of it, so a third of its binlogs.

Of the clustered keys that it has for each type and collation one stays, and of the integer keys
two; what TiDB keeps for itself goes. Tests that drive a recording through a process for the sake of
something else take it. Every transaction that touches no table that went is there as TiDB sent it.

    python -m tests.support.few      # writes it
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from binlogd.wire import peek
from binlogd.wire.mutation import mutations
from tests.support.recordings_reader import RECORD_HEAD, RECORDINGS, history, info, records

WHOLE, FEW = RECORDINGS / "keys", RECORDINGS / "few"
_GONE = re.compile(
    r"mysql\..*|keys\.(c[ls]_(0[1-9]|[12]\d)|pk_((tiny|small)int|(tiny|medium)?int_unsigned))"
)


def files() -> dict[str, bytes]:
    """What it consists of, by name, unpacked."""
    every = json.loads(history(WHOLE))
    gone = {job["id"]: job["table_id"] for job in every if _is_gone(job)}
    jobs = [job for job in every if job["id"] not in gone]
    binlogs = list(_binlogs(gone))
    with gzip.open(WHOLE / "expected.jsonl.gz", "rt", encoding="utf-8") as stream:
        lines = [line for line in stream if not _GONE.fullmatch(_label(json.loads(line)))]
    told = {key: info(WHOLE)[key] for key in ("source", "cluster_id", "first_tso", "last_tso")}
    return {
        "binlogs.rec": b"".join(binlogs),
        "ddl_history.json": json.dumps(jobs).encode(),
        "expected.jsonl": "".join(lines).encode(),
        "info.json": (json.dumps(told | {"records": len(binlogs)}, indent=1) + "\n").encode(),
    }


def _is_gone(job: dict[str, Any]) -> bool:
    """Whether it made, or changed, a table that is not there."""
    table = job["binlog"].get("TableInfo")
    return bool(table and _GONE.fullmatch(f"{job['schema_name']}.{table['name']['O']}"))


def _label(table: dict[str, Any]) -> str:
    return f"{table['db']}.{table['table']}"


def _binlogs(gone: dict[int, int]) -> Iterator[bytes]:
    left_out, tables = set[int](), set(gone.values())
    for each in records(WHOLE):
        head, body = peek.peek(each.payload), peek.body(each.payload)
        _, changes = mutations(body.prewrite_value) if body.prewrite_value else (0, [])
        if body.ddl_job_id in gone or any(change.table_id in tables for change in changes):
            left_out.add(head.start_ts)
        if head.start_ts not in left_out:
            yield RECORD_HEAD.pack(each.arrival_us, each.pump, len(each.payload)) + each.payload


def stored() -> dict[str, bytes]:
    """What lies there, unpacked."""
    return {path.name.removesuffix(".gz"): _content(path) for path in FEW.iterdir()}


def _content(path: Path) -> bytes:
    content = path.read_bytes()
    return gzip.decompress(content) if path.suffix == ".gz" else content


if __name__ == "__main__":
    for name, content in files().items():
        if name == "info.json":
            (FEW / name).write_bytes(content)
        else:
            (FEW / f"{name}.gz").write_bytes(gzip.compress(content, mtime=0))
