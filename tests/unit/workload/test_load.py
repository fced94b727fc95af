"""The loads of the benchmarks are rows that the product can read."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from binlogd.tidb.encode import encode_delete, encode_insert, encode_update
from binlogd.tidb.model import jobs_from_json
from binlogd.tidb.row import RowDecoder
from binlogd.tidb.schema import SchemaTracker
from binlogd.tso import Tso
from binlogd.wire.mutation import mutations
from binlogd.wire.peek import body
from tests.bench.load import Load, inserts, mixed, updates


@pytest.mark.parametrize(
    ("made", "per_txn"),
    [
        (lambda: inserts(2000), 10),
        (lambda: updates(1000, table_rows=2000), 5),
        (lambda: mixed(4000, tables=4, table_rows=500), 4),
    ],
    ids=["inserts", "updates", "mixed"],
)
def test_every_row_decodes_and_would_be_encoded_the_same(
    made: Callable[[], Load], per_txn: int
) -> None:
    load = made()
    tracker = SchemaTracker()
    jobs = jobs_from_json(load.history)
    tracker.load(jobs)
    tracker.apply_finished_by(Tso(max(job.finished_ts for job in jobs)))
    rows = 0
    commit_ts = 0
    for binlog in [*load.setup, *load.binlogs]:
        assert binlog.commit_ts > commit_ts
        commit_ts = binlog.commit_ts
        content = body(binlog.payload)
        if content.ddl_job_id:
            continue
        version, tables = mutations(content.prewrite_value)
        for mutation in tables:
            seen = tracker.table_at(mutation.table_id, version)
            assert seen is not None
            decoder = RowDecoder(seen)
            for row in mutation.inserted:
                assert encode_insert(seen.info, decoder.insert(row), handle=None) == row
            for row in mutation.updated:
                old, new = decoder.update(row)
                assert encode_update(seen.info, old, new, handle=None) == row
                assert old != new
            for row in mutation.deleted:
                assert encode_delete(seen.info, decoder.delete(row), handle=None) == row
            if binlog in load.binlogs:
                rows += len(mutation.sequence)
    assert rows == load.rows
    assert len(load.binlogs) == load.rows // per_txn
