"""The two sides of a comparison: what must be there, and what is."""

from __future__ import annotations

import pytest

from binlogd.tidb.model import Column, FieldType, Table
from binlogd.tso import Tso
from tests.workload.model import Contents, Model, StoredRow
from tests.workload.replica import Replica, differences

NAME = ("shop", "items")
FIRST = Table(7, "items", (Column(1, "id", 0, FieldType(3)), Column(2, "v", 1, FieldType(3))))
WIDER = Table(7, "items", (*FIRST.columns, Column(3, "w", 2, FieldType(3))))


def filled_model(*, history: bool = True) -> Model:
    model = Model(history=history)
    model.define(Tso(10), {NAME: FIRST}, {7: {}})
    model.write(Tso(20), {7: {1: StoredRow((1, 2), (1, 100)), 2: StoredRow((1, 2), (2, 200))}})
    model.write(Tso(30), {7: {1: StoredRow((1, 2), (1, 101))}})
    model.define(Tso(40), {NAME: WIDER}, {7: {3: 9}})
    model.write(Tso(50), {7: {2: None, 3: StoredRow((1, 2, 3), (3, 300, 5))}})
    return model


def rows_at(model: Model, commit_ts: int) -> set[tuple[object, ...]]:
    return set(model.contents(Tso(commit_ts))[NAME].rows)


def test_the_model_knows_every_moment() -> None:
    model = filled_model()
    assert model.contents(Tso(9)) == {}
    assert rows_at(model, 10) == set()
    assert rows_at(model, 29) == {(1, 100), (2, 200)}
    assert rows_at(model, 30) == {(1, 101), (2, 200)}
    assert rows_at(model, 40) == {(1, 101, 9), (2, 200, 9)}
    assert set(model.contents()[NAME].rows) == {(1, 101, 9), (3, 300, 5)}
    assert model.row_count() == 2
    assert model.moments() == [10, 40]


def test_a_model_without_history_knows_the_last_moment() -> None:
    assert filled_model(history=False).contents() == filled_model().contents()


def test_a_model_is_told_commits_in_order() -> None:
    with pytest.raises(AssertionError):
        filled_model().write(Tso(50), {})


def test_every_kind_of_difference_is_named() -> None:
    expected = {NAME: Contents(("id", "v"), ((1, 1), (2, 2), (2, 2)))}
    same = {NAME: Contents(("v", "id", "old"), ((1, 1, 0), (2, 2, 5), (2, 2, 0)))}
    assert differences(expected, same) == []
    lost = differences(expected, {NAME: Contents(("id", "v"), ((1, 1), (2, 2)))})
    assert lost == ["shop.items: 1 rows lost, for instance (2, 2)"]
    changed = differences(expected, {NAME: Contents(("id", "v"), ((1, 3), (2, 2), (2, 2)))})
    assert changed == [
        "shop.items: 1 rows lost, for instance (1, 1)",
        "shop.items: 1 rows too many, for instance (1, 3)",
    ]
    assert differences(expected, {}) == ["shop.items: not there"]
    assert differences({}, same) == ["shop.items: not expected"]
    assert differences(expected, {NAME: Contents(("id",), ())}) == ["shop.items: no columns ['v']"]


def test_a_replica_remembers_what_cannot_be() -> None:
    replica = Replica()
    replica.execute("use `shop`; CREATE TABLE `shop`.`items` (`id` INT,`v` INT,PRIMARY KEY(`id`));")
    replica.execute("CREATE TABLE `shop`.`log` (`v` DECIMAL(3,1),`e` ENUM('a,b','c(')) COMMENT='x'")
    replica.insert(NAME, {"id": 1, "v": 1})
    replica.insert(("shop", "log"), {"v": "1.0", "e": 1})
    replica.insert(("shop", "log"), {"v": "1.0", "e": 1})
    replica.delete(("shop", "log"), {"v": "1.0", "e": 1})
    assert replica.problems == []
    assert replica.contents()["shop", "log"] == Contents(("v", "e"), (("1.0", 1),))
    replica.insert(NAME, {"id": 1, "v": 2})
    replica.delete(NAME, {"id": 5, "v": 2})
    replica.delete(("shop", "log"), {"v": "2.0", "e": 1})
    replica.execute("ALTER TABLE `shop`.`items` ENGINE = nothing")
    replica.insert(("shop", "ghost"), {"id": 1})
    assert len(replica.problems) == 5
