"""Jobs and tables out of TiDB's JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given

from binlogd.errors import Corrupt
from binlogd.tidb.model import (
    ActionType,
    Database,
    JobState,
    SchemaState,
    database_from_json,
    database_to_json,
    job_from_json,
    jobs_from_json,
    table_from_json,
    table_to_json,
)
from tests.support.recordings_reader import RECORDINGS, history
from tests.support.row_strategies import Sample, samples

RECORDED = ("ddl", "keys", "large", "mixed", "types")


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_tables_come_back_from_their_json(name: str) -> None:
    jobs = jobs_from_json(history(RECORDINGS / name))
    tables = [table for job in jobs for table in (job.table, *job.tables) if table]
    assert tables
    for table in tables:
        assert table_from_json(table_to_json(table)) == table
    for database in (job.database for job in jobs if job.database):
        assert database_from_json(database_to_json(database)) == database


@pytest.mark.parametrize("name", RECORDED)
def test_a_job_comes_back_from_its_own_text(name: str) -> None:
    for job in jobs_from_json(history(RECORDINGS / name)):
        assert job_from_json(job.raw) == job


@given(samples())
def test_made_up_tables_come_back_from_their_json(sample: Sample) -> None:
    assert table_from_json(table_to_json(sample.table)) == sample.table


def test_the_kinds_of_tables_are_told_apart() -> None:
    assert table_from_json(b'{"view": {}}').is_view
    assert table_from_json(b'{"sequence": {"sequence_start": 1}}').is_sequence
    partitioned = b'{"partition": {"definitions": [{"id": 5}, {"id": 6}]}}'
    assert table_from_json(partitioned).partition_ids == (5, 6)


def test_names_keep_their_case() -> None:
    text = b'{"id": 2, "db_name": {"O": "Shop", "L": "shop"}, "state": 5}'
    assert database_from_json(text) == Database(2, "Shop", "", "", SchemaState.PUBLIC)


def test_numbers_of_a_newer_tidb_are_kept() -> None:
    job = job_from_json(b'{"id": 1, "type": 999, "state": 77, "schema_state": 66, "new": [1]}')
    assert (job.type, job.state, job.schema_state) == (999, 77, 66)
    assert not job.is_done


def test_missing_and_null_parts_are_empty() -> None:
    job = job_from_json(b'{"id": 1, "binlog": {"TableInfo": {"cols": null}}}')
    assert job.table is not None
    assert [*job.table.columns, *job.table.indexes, *job.tables] == []
    assert job.database is None
    assert (job.type, job.state) == (ActionType.NONE, JobState.NONE)


def test_an_empty_history_has_no_jobs() -> None:
    assert jobs_from_json(b"null") == jobs_from_json(b"[]") == []


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[1]", b'[{"id": "x"}]', b"\xff", json.dumps("text").encode()]
)
def test_text_that_is_no_history_is_corrupt(data: bytes) -> None:
    with pytest.raises(Corrupt, match="schema JSON"):
        jobs_from_json(data)
