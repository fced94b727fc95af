"""Holds the tables of a changelog against the log itself and against the model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pyarrow as pa

from binlogd.snapshot.formats.columns import arrow_column
from binlogd.snapshot.spec import TypeOptions
from binlogd.spark.lake.changelog import MARK_NAMES
from binlogd.spark.lake.moving import Lake
from binlogd.spark.lake.rows import KEY_COLUMN
from binlogd.tso import Tso
from tests.support import snapshot_reader
from tests.support.logged import Logged, check_lake, expected, lake_rows, read

OF_TABLES = ("ddl", "truncate", "drop")
Rows = list[dict[str, Any]]


def histories(lake: Lake) -> dict[str, Rows]:
    """The rows of each table, in their order."""
    found = {}
    for name, table in lake.manifest().read().tables.items():
        rows = lake_rows(lake, table).to_pylist()
        found[name] = sorted(rows, key=lambda row: (row["_commit_ts"], row["_seq"]))
    return found


def check_as_kept(logged: Logged, lake: Lake, at: int) -> None:
    """By the mode of the lake."""
    (check_lake if lake.mode == "upsert" else check_changelog)(logged, lake, at)


def check_changelog(logged: Logged, lake: Lake, at: int, since: int = 0, **more: str) -> None:
    """The lake is at this moment, and has each change of the log once, as it was then."""
    assert lake.manifest().read().commit_ts == at
    told = histories(lake)
    check_changes(logged, told, {"from": str(since), "to": str(at), **more})
    if not since:
        _check_tables(logged, told, at)


def check_changes(logged: Logged, told: Mapping[str, Rows], options: Mapping[str, str]) -> None:
    """`raw` is decoded in another way, and names everything as it was called."""
    places: dict[tuple[int, int], Rows] = {}
    tables: dict[tuple[int, int], str] = {}
    for name, rows in told.items():
        for row in rows:
            if row["_op"] not in OF_TABLES:
                place = row["_commit_ts"], row["_seq"] // 2
                places.setdefault(place, []).append(row)
                tables[place] = name
    of_id: dict[int, set[str]] = {}
    for raw in read(logged.options(**options)).to_pylist():
        if raw["op"] == "ddl":
            continue
        place = raw["commit_ts"], raw["seq"]
        rows = places.pop(place, [])
        of_id.setdefault(raw["table_id"], set()).add(tables.get(place, "nowhere"))
        ops = [row["_op"] for row in rows]
        if ops == ["delete", "insert"] and raw["op"] == "update":
            _check_row(rows[0], json.loads(raw["before"]))
        else:
            assert ops == [raw["op"]], raw
        _check_row(rows[-1], json.loads(raw["row"]))
    assert not places, "what the log does not have"
    assert all(len(each) == 1 for each in of_id.values()), "a table goes on where it was"


def _check_row(row: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Of a row that went, `raw` does not say what it held in a column that is newer than it."""
    values = {each: of for each, of in row.items() if each not in MARK_NAMES and of is not None}
    held = json.loads(msgspec.json.encode(values))
    where = row["_commit_ts"], row["_seq"]
    for name, value in wanted.items():
        places = [each for each in held if each.lower().split("__")[0] == name.lower()]
        found = [_plain(held.pop(each)) for each in places]
        if value is not None or row["_op"] != "delete":
            assert found == ([] if value is None else [_plain(value)]), (where, name)
    assert not held, (where, "columns that it did not have")


def _plain(value: Any) -> Any:
    """Whatever type a number has."""
    return str(int(value) if isinstance(value, bool) else value)


def folded(rows: Rows) -> Rows:
    """What is left of a table: the last row of each key."""
    held: dict[bytes, dict[str, Any]] = {}
    for row in rows:
        if row["_op"] in ("truncate", "drop"):
            held.clear()
        elif row["_op"] == "delete":
            del held[row[KEY_COLUMN]]
        elif row["_op"] != "ddl":
            assert (row["_op"] == "insert") == (row[KEY_COLUMN] not in held), row
            held[row[KEY_COLUMN]] = row
    return list(held.values())


def _check_tables(logged: Logged, told: Mapping[str, Rows], at: int) -> None:
    """There are as many rows as the model says, and where a table never changed, these."""
    model = logged.workload.model
    for name, contents in model.contents(Tso(at)).items():
        history = told[".".join(name)]
        rows, changed = folded(history), [row["_query"] or "" for row in history[1:]]
        if any("PARTITION" in query.upper() for query in changed):
            continue  # rows went with one, and no binlog tells which
        assert len(rows) == len(contents.rows), name
        if any(changed):
            continue
        columns = [each for each in model.tables(Tso(at))[name].columns if each.is_public]
        arrow = [arrow_column(each, TypeOptions()) for each in columns]
        schema = pa.schema([(each.column.name, each.type) for each in arrow])
        held = pa.Table.from_pylist(
            [{each: row[each] for each in schema.names} for row in rows], schema
        )
        entries = [each.entry() for each in arrow]
        assert snapshot_reader.rows_of(held, entries) == expected(logged.workload, name, Tso(at)), (
            name
        )
