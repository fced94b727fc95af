"""The generated stream, read by the product's own tracker and decoder, is what the model says."""

from __future__ import annotations

import hashlib
from collections import Counter

import pytest

from binlogd.binlog import BinlogType
from binlogd.tidb.model import jobs_from_json
from binlogd.tidb.row import RowDecoder, Value
from binlogd.tidb.schema import SchemaTracker
from binlogd.wire.mutation import mutations
from binlogd.wire.peek import body
from tests.workload.generator import Options, Workload
from tests.workload.replica import Replica, differences
from tests.workload.timeline import Record

GOLDEN_DIGEST = "25070e1052995c7f569ed51acb1129c7fa4489668000f88393c6948e428a6592"
"""Changes only when the workload is changed on purpose."""


class Reader:
    """Committed binlogs to a replica, by way of schema tracker and row decoder."""

    def __init__(self, history: bytes) -> None:
        jobs = jobs_from_json(history)
        self._jobs = {job.id: job for job in jobs}
        self._tracker = SchemaTracker()
        self._tracker.load(jobs)
        self.replica = Replica()
        self.rows_of_gone_tables = 0

    def read(self, prewrite: bytes) -> None:
        content = body(prewrite)
        if content.ddl_job_id:
            job = self._jobs[content.ddl_job_id]
            if self._tracker.apply(job, content.ddl_schema_state).is_in_force:
                self.replica.execute(content.ddl_query.decode())
            return
        version, tables = mutations(content.prewrite_value)
        for mutation in tables:
            table = self._tracker.table_at(mutation.table_id, version)
            if table is None:
                assert self._tracker.is_truncated(mutation.table_id)
                self.rows_of_gone_tables += len(mutation.sequence)
                continue
            names = {column.id: column.name for column in table.info.columns}
            name, decoder = (table.database, table.info.name), RowDecoder(table)

            def named(values: dict[int, Value], names: dict[int, str] = names) -> dict[str, Value]:
                return {names[each]: value for each, value in values.items()}

            inserted, updated = iter(mutation.inserted), iter(mutation.updated)
            deleted = iter(mutation.deleted)
            for kind in mutation.sequence:
                if kind == 0:
                    self.replica.insert(name, named(decoder.insert(next(inserted))))
                elif kind == 1:
                    old, new = decoder.update(next(updated))
                    self.replica.update(name, named(old), named(new))
                else:
                    self.replica.delete(name, named(decoder.delete(next(deleted))))


def committed(records: list[Record]) -> list[Record]:
    """The prewrites of committed transactions, in commit order, once each."""
    prewrites = {
        record.fate.start_ts: record
        for record in records
        if record.kind == BinlogType.PREWRITE and record.fate.commit_ts
    }
    return sorted(prewrites.values(), key=lambda record: record.fate.commit_ts)


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (2, 3, 4, 5))]
)
def test_replayed_binlogs_are_what_the_model_says_at_every_moment(seed: int) -> None:
    workload = Workload(Options(seed=seed, transactions=500, ddl_every=25))
    records = list(workload.records())
    reader = Reader(workload.history())
    moments = set(workload.model.moments())
    for n, record in enumerate(committed(records)):
        reader.read(record.payload)
        if n % 97 == 0 or record.fate.commit_ts in moments:
            found = reader.replica.contents()
            expected = workload.model.contents(record.fate.commit_ts)
            assert differences(expected, found) == []
            assert reader.replica.problems == []
    assert differences(workload.model.contents(), reader.replica.contents()) == []


def test_the_same_options_give_the_same_bytes() -> None:
    def digest(seed: int) -> str:
        workload = Workload(Options(seed=seed, transactions=300, ddl_every=30))
        sha = hashlib.sha256()
        for record in workload.records():
            sha.update(record.payload)
        sha.update(workload.history())
        return sha.hexdigest()

    assert digest(11) == digest(11) == GOLDEN_DIGEST
    assert digest(11) != digest(12)


def test_a_commit_ts_is_handed_out_after_everything_it_must_lie_behind() -> None:
    """Prewrites come before their outcomes, and timestamps that left before are smaller."""
    workload = Workload(Options(seed=5, transactions=600, ddl_every=40))
    seen_prewrites: set[int] = set()
    for record in workload.records():
        if record.kind == BinlogType.PREWRITE:
            seen_prewrites.add(record.fate.start_ts)
        else:
            assert record.fate.start_ts in seen_prewrites
            assert record.ts == (record.fate.commit_ts or record.fate.start_ts)


def test_a_workload_has_every_kind_of_trouble() -> None:
    workload = Workload(Options(seed=3, transactions=2000, ddl_every=15))
    records = list(workload.records())
    statistics = workload.statistics()
    assert statistics.committed + statistics.rolled_back == 2000
    assert statistics.rolled_back > 20
    assert statistics.repeats > 15
    assert statistics.late > 150
    assert statistics.lost > 0
    commits = [r.ts for r in records if r.kind == BinlogType.COMMIT and not r.is_repeat]
    assert commits != sorted(commits)
    jobs = jobs_from_json(workload.history())
    types = Counter(int(job.type) for job in jobs)
    assert types.keys() >= {1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 14}
    assert {int(job.state) for job in jobs} == {3, 6}
    reader = Reader(workload.history())
    for record in committed(records):
        reader.read(record.payload)
    assert reader.rows_of_gone_tables > 0
