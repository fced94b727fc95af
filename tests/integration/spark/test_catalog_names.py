"""The tables of a lake in a catalog of the user's: a name shows what `tables.json` names, or named
before it was turned, whenever the pipeline is killed and whatever DDL did."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog

from binlogd.errors import ConfigError
from binlogd.snapshot.publishing.lake import catalogs
from binlogd.snapshot.publishing.lake.catalogs import CatalogFailed
from binlogd.spark.lake import names
from binlogd.spark.lake.layout import LaidBy, LakeLayout
from binlogd.spark.lake.manifest import Claim, LakeTable, LakeTables, PipelineStopped
from binlogd.spark.lake.moving import Lake, show
from binlogd.spark.lake.place import place_of
from binlogd.spark.lake.rows import KEY_COLUMN, KEY_ID
from binlogd.spark.submit import _check_installed
from tests.support.iceberg_catalogs import CATALOGS, NAME, described
from tests.support.submitted import arguments_of

Rows = list[tuple[Any, ...]]
Page = dict[str, LakeTable]

SERVERS = ("rest", "glue", "hive")
ONE = [(1, "a"), (2, "b")]
TWO = [(3, "c")]


@pytest.fixture(
    params=[
        "sql",
        *(pytest.param(each, marks=pytest.mark.soak) for each in ("rest", "glue", "hive")),
    ]
)
def catalog(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Catalog]:
    with CATALOGS[request.param](tmp_path, monkeypatch), closing(load_catalog(NAME)) as found:
        yield found


class NamedLake:
    """A lake whose tables are made by hand: what a batch ends with, without the batch."""

    def __init__(self, directory: Path) -> None:
        self.lake = Lake(place_of(f"iceberg:{directory / 'lake'}"), catalog=NAME)
        self.pages: list[Page] = []
        self._end = 0

    def table(
        self, table_id: int, *rows: tuple[Any, ...], then: LakeTable | None = None, by: int = 0
    ) -> LakeTable:
        """A new table, or the next version of one, as wide as its rows; partitioned by a column."""
        self._end += 1
        width = max((len(each) for each in rows), default=2)
        schema = pa.schema(
            [
                *(
                    _field(f"c{at}", at, pa.int64() if at == 1 else pa.string())
                    for at in range(1, width + 1)
                ),
                _field(KEY_COLUMN, KEY_ID, pa.binary()),
            ]
        )
        columns = [[row[at] if at < len(row) else None for row in rows] for at in range(width)]
        keys = [str(row[0]).encode() for row in rows]
        batch = pa.RecordBatch.from_arrays(
            [
                pa.array(values, field.type)
                for values, field in zip([*columns, keys], schema, strict=True)
            ],
            schema=schema,
        )
        content = self.lake.content()
        if then is not None:
            files = content.files(then).written(schema, [batch])
            return content.kind.rewrite(then, schema, files, self._end)
        layout = LakeLayout((LaidBy(f"c{by}", id=by),) if by else ())
        table = LakeTable(table_id, f"table-{table_id}", 0, layout=layout)
        made = content.kind.create(table, schema, "a table", self._end)
        return content.append(made, schema, [batch], self._end) if rows else made

    def turn(self, page: Page) -> LakeTables:
        """Makes these the tables of the lake; nobody is told."""
        self._end += 1
        self.pages.append(page)
        now = LakeTables(self._end, page, "iceberg")
        self.lake.manifest().turn(now, b"{}")
        return now


def _field(name: str, number: int, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, metadata={"PARQUET:field_id": str(number)})


def held(catalog: Catalog) -> dict[str, Rows]:
    """What a reader finds who asks for names: those of the database `s`."""
    if not catalog.namespace_exists("s"):
        return {}
    return {".".join(name): rows_of(catalog.load_table(name)) for name in catalog.list_tables("s")}


def rows_of(table: Any) -> Rows:
    found = table.scan().to_arrow().drop_columns([KEY_COLUMN])
    return sorted(zip(*(each.to_pylist() for each in found.columns), strict=True))


def life(lake: NamedLake) -> Iterator[tuple[Page, dict[str, Rows]]]:
    """Pages as DDL leaves them behind, with what names hold then."""
    one = lake.table(1, *ONE)
    yield {"s.a": one}, {"s.a": ONE}
    two = lake.table(2, *TWO)
    yield {"s.a": one, "s.b": two}, {"s.a": ONE, "s.b": TWO}
    wide = lake.table(1, (1, "a", "new"), then=one)
    yield {"s.a": wide, "s.b": two}, {"s.a": [(1, "a", "new")], "s.b": TWO}
    yield {"s.b": wide, "s.a": two}, {"s.b": [(1, "a", "new")], "s.a": TWO}  # swapped
    cut = lake.table(3)
    yield {"s.b": cut, "s.a": two}, {"s.b": [], "s.a": TWO}  # TRUNCATE
    more = lake.table(3, *ONE, then=cut)
    yield {"s.b": more, "s.a": two}, {"s.b": ONE, "s.a": TWO}
    yield {"s.c": more, "s.a": two}, {"s.c": ONE, "s.a": TWO}  # RENAME
    yield {"s.a": two}, {"s.a": TWO}  # DROP
    yield {"s.a": lake.table(5, *ONE, by=2)}, {"s.a": ONE}  # partitioned from now on
    by_number = lake.table(6, *TWO, by=1)
    yield {"s.a": by_number}, {"s.a": TWO}  # by another column, as a DDL of the first one leaves it
    yield {"s.a": lake.table(6, *ONE, then=by_number)}, {"s.a": ONE}
    yield {"s.a": lake.table(7, *TWO)}, {"s.a": TWO}
    yield {}, {}


class Dying:
    """Ends a run at one of its writes to the catalog, before it or behind it."""

    def __init__(self, catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
        self._left = self._behind = -1
        for name in ("commit_table", "drop_table"):
            monkeypatch.setattr(type(catalog), name, self._around(getattr(type(catalog), name)))

    def at(self, write: int, *, behind: bool) -> None:
        """Of the next run; a write that does not come ends nothing."""
        self._left, self._behind = write, behind

    def _around(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def around(*words: Any) -> Any:
            self._left -= 1
            if self._left == -1 and not self._behind:
                raise OSError("the machine is off")
            answer = write(*words)
            if self._left == -1:
                raise OSError("the machine is off")
            return answer

        return around


def test_names_follow_each_page_and_a_run_that_was_killed_is_made_up_for_by_the_next(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogs, "ATTEMPTS_MAX", 1)
    dying, lake = Dying(catalog, monkeypatch), NamedLake(tmp_path)
    before: dict[str, Rows] = {}
    for page, wanted in life(lake):
        now = lake.turn(page)
        for write, behind in ((0, True), (1, False)):
            dying.at(write, behind=behind)
            with suppress(CatalogFailed):  # all may be there by now
                show(lake.lake, now)
            for name, rows in held(catalog).items():
                assert rows in (before.get(name), wanted.get(name))
        dying.at(-1, behind=False)
        show(lake.lake, now, checks_all=True)
        assert held(catalog) == wanted
        for name, table in page.items():
            shown = catalog.load_table(name).current_snapshot()
            assert table.version == (0 if shown is None else shown.snapshot_id)
        before = wanted
    assert list((tmp_path / "lake" / names.NAMES).iterdir()) == []


@pytest.mark.parametrize(
    ("answer_s", "said"), [(60.0, "ConnectionError"), (0.2, r"no answer within 0\.2 s")]
)
def test_a_catalog_that_does_not_answer_is_told_and_costs_the_lake_nothing(
    answer_s: float, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogs, "RETRY_S", 0.001)
    monkeypatch.setattr(catalogs, "ANSWER_S", answer_s)
    lake = NamedLake(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as server:
        described(monkeypatch, uri=f"http://127.0.0.1:{server.getsockname()[1]}")
        if "no answer" not in said:
            server.close()  # else it takes the request and says nothing
        now = lake.turn({"s.a": lake.table(1, *ONE)})
        for words, checks_all in (("s.a", False), ("opening it", True)):
            with pytest.raises(CatalogFailed, match=f"catalog names: {words}: .*{said}"):
                show(lake.lake, now, checks_all=checks_all)
    assert lake.lake.manifest().read() == now


def test_a_table_of_others_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CATALOGS["sql"](tmp_path, monkeypatch), closing(load_catalog(NAME)) as catalog:
        catalog.create_namespace("s")
        others = (tmp_path / "others").as_uri()
        made = catalog.create_table("s.a", pa.schema([("x", pa.int64())]), others)
        lake = NamedLake(tmp_path)
        now = lake.turn({"s.a": lake.table(1, *ONE)})
        with pytest.raises(
            PipelineStopped, match=r"has a table s\.a at .*which is none of the lake"
        ):
            show(lake.lake, now)
        assert catalog.load_table("s.a").metadata_location == made.metadata_location


def test_a_catalog_that_cannot_be_is_refused(tmp_path: Path) -> None:
    lake = Lake(place_of(f"iceberg:{tmp_path / 'lake'}"), catalog="nowhere")
    lake.manifest().claim(Claim("a", "here"))
    with pytest.raises(ConfigError, match="the Iceberg catalog nowhere is not configured"):
        show(lake, LakeTables(0, {}, "iceberg"), checks_all=True)


def test_only_a_lake_of_iceberg_has_a_catalog() -> None:
    words = ["--source", "x", "--into", "delta:x", "--checkpoint", "x", "--catalog", NAME]
    with pytest.raises(ConfigError, match="only --into iceberg:"):
        _check_installed(arguments_of(*words))
