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

FORMS = ("changes", "changelog")


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
    for batch in changes_behind(NO_TS, read(logged.options(form="changes")).to_batches()):
        for each in batch.to_pylist():
            of_tables.setdefault(each["table_id"], []).append((each["commit_ts"], each["seq"]))
    assert len(of_tables) > 3
    for places in of_tables.values():
        assert all(first < second for first, second in pairwise(places))
