"""DDL jobs as TiDB serves them, and a schema's snapshot: read, or Corrupt."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator

from binlogd.errors import BinlogdError, Corrupt
from binlogd.tidb.model import job_from_json, jobs_from_json, table_from_json, table_to_json
from binlogd.tidb.schema import SchemaTracker
from tests.support.recordings_reader import RECORDINGS


def seeds() -> Iterator[bytes]:
    """Jobs of the recordings, one of each kind, and a snapshot."""
    jobs = json.loads(gzip.decompress((RECORDINGS / "ddl" / "ddl_history.json.gz").read_bytes()))
    seen = set()
    for job in jobs:
        raw = json.dumps(job).encode()
        if job["type"] not in seen and len(raw) < 4000:
            seen.add(job["type"])
            yield raw
    tracker = SchemaTracker()
    tracker.load(jobs_from_json(json.dumps(jobs[-1:]).encode()))
    yield tracker.snapshot()


def run(data: bytes) -> None:
    """A job, jobs, a table, or a snapshot."""
    try:
        job = job_from_json(data)
    except Corrupt:
        pass
    else:
        tracker = SchemaTracker()
        try:
            tracker.apply(job, 5)
        except BinlogdError:
            return
        SchemaTracker.from_snapshot(tracker.snapshot())
    for read in (jobs_from_json, SchemaTracker.from_snapshot):
        try:
            read(data)
        except Corrupt:
            continue
    try:
        table = table_from_json(data)
    except Corrupt:
        return
    assert table_from_json(table_to_json(table)) == table
