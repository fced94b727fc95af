"""Row changes of a pipeline: the same however many are gone through at a time."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from binlogd.snapshot.log.rowkey import Op
from binlogd.spark import changes
from binlogd.spark.steps import changes_behind
from binlogd.tso import NO_TS
from tests.support.logged import Logged, changes_of, read
from tests.workload.generator import Options

FORMS = ("change-steps", "changelog-steps")


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Logged:
    options = Options(seed=31, transactions=150, ddl_every=20)
    return Logged.write(tmp_path_factory.mktemp("log"), options)


def found(logged: Logged, form: str, patch: pytest.MonkeyPatch, **limits: int) -> list[Any]:
    with patch.context() as held:
        for name, value in limits.items():
            held.setattr(changes, name, value)
        return changes_of(read(logged.options(form=form)))


@pytest.mark.parametrize("form", FORMS)
def test_changes_are_the_same_together_and_one_by_one(
    form: str, logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_by_one = found(logged, form, monkeypatch, TOGETHER_ROWS_MIN=1 << 30)
    assert {each["op"] for each in one_by_one if not each["job_id"]} == {
        Op.PUT,
        Op.UPDATE,
        Op.DELETE,
    }
    assert found(logged, form, monkeypatch, TOGETHER_ROWS_MIN=1) == one_by_one
    assert found(logged, form, monkeypatch, TOGETHER_ROWS_MIN=1, TOGETHER_BYTES=2_000) == one_by_one
    assert found(logged, form, monkeypatch) == one_by_one


@pytest.mark.parametrize("form", FORMS)
def test_a_large_transaction_comes_in_parts(
    form: str, logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = found(logged, form, monkeypatch)
    assert found(logged, form, monkeypatch, LARGE_BYTES=300, BATCH_ROWS=2) == whole
    monkeypatch.setattr(changes, "LARGE_BYTES", 0)
    monkeypatch.setattr(changes, "BATCH_BYTES_MAX", 1)
    steps = read(logged.options(form=form))
    assert len(steps) == len(whole), "each change is a batch of its own"


@pytest.mark.parametrize("size", [1, 5_000, 1 << 30])
def test_changes_of_a_table_come_in_their_order(
    size: int, logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "TOGETHER_BYTES", size)
    of_tables: dict[int, list[tuple[int, int]]] = {}
    for batch in changes_behind(NO_TS, read(logged.options(form="change-steps")).to_batches()):
        for each in batch.to_pylist():
            of_tables.setdefault(each["table_id"], []).append((each["commit_ts"], each["seq"]))
    assert len(of_tables) > 3
    for places in of_tables.values():
        assert all(first < second for first, second in pairwise(places))


@pytest.mark.parametrize(("form", "steps"), [("changes", FORMS[0]), ("changelog", FORMS[1])])
def test_who_reads_changes_by_themselves_gets_the_same_a_change_a_row(
    form: str, steps: str, logged: Logged
) -> None:
    rows = read(logged.options(form=form)).to_pylist()
    places = [(each["commit_ts"], each["seq"]) for each in rows]
    assert places == sorted(places)
    packed = changes_of(read(logged.options(form=steps)))
    ddl = [each for each in packed if each["job_id"]]
    of_rows = [each for each in rows if each["ddl_job_id"]]
    assert [each["job_id"] for each in ddl] == [each["ddl_job_id"] for each in of_rows]
    assert [each["query"] for each in ddl] == [each["ddl_query"] for each in of_rows]
    assert all(each["key"] == b"" for each in of_rows)
    names = ("table_id", "key", "commit_ts", "seq", "op", "schema_version", "row")
    told = [[each[name] for name in names] for each in packed if not each["job_id"]]
    assert [[each[name] for name in names] for each in rows if not each["ddl_job_id"]] == told
