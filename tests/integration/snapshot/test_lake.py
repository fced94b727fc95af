"""Published snapshots as versions of Delta Lake and Iceberg tables, read by their own libraries."""

from __future__ import annotations

from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table as IcebergTable

from binlogd.errors import ConfigError
from binlogd.snapshot.export import ExportOptions
from binlogd.snapshot.publication import published, register
from binlogd.snapshot.publishing.lake import catalogs
from binlogd.snapshot.publishing.lake.catalogs import CatalogFailed
from binlogd.snapshot.publishing.lake.version import COMMIT_TS_KEY
from binlogd.snapshot.spec import Lake
from binlogd.spark.lake.place import place_of
from tests.support.iceberg_catalogs import CATALOGS, NAME, described
from tests.support.snapshots import Columns, snapshot

FIRST: Columns = [
    (1, "id", pa.array([1, 2], pa.int32())),
    (2, "name", pa.array(["a", None])),
    (3, "old", pa.array([b"\0\xff", b""])),
]
SECOND: Columns = [
    (1, "id", pa.array([1, 2, 3], pa.int64())),
    (2, "title", pa.array(["a", None, "c"])),
    (5, "old", pa.array([Decimal("9" * 38), None, Decimal(0)], pa.decimal128(38, 0))),
    (
        4,
        "at",
        pa.array(["9999-12-31 23:59:59.999999"] * 3).cast(pa.timestamp("us")),
    ),
    (6, "seen", pa.array(["1970-01-01 00:00:01Z"] * 3).cast(pa.timestamp("us", "UTC"))),
]


def plain(columns: Columns) -> dict[str, list[object]]:
    return {name: values.to_pylist() for _, name, values in columns}


def delta(out: Path) -> DeltaTable:
    return DeltaTable(str(out / "lake/shop.t"))


def iceberg(out: Path) -> IcebergTable:
    where = f"sqlite:///{out / 'lake/catalog.db'}"
    with closing(SqlCatalog("binlogd", uri=where)) as catalog:
        return catalog.load_table(("shop", "t"))


def versions(lake: Lake, out: Path) -> dict[int, dict[str, list[object]]]:
    """The rows of every version, by its commit_ts."""
    found: dict[int, dict[str, list[object]]] = {}
    if lake == "delta":
        table = delta(out)
        for entry in table.history():
            if COMMIT_TS_KEY in entry:
                table.load_as_version(entry["version"])
                found[int(entry[COMMIT_TS_KEY])] = table.to_pyarrow_table().to_pydict()
        return found
    for each in iceberg(out).snapshots():
        assert each.summary is not None
        rows = iceberg(out).scan(snapshot_id=each.snapshot_id).to_arrow().to_pydict()
        found[int(each.summary.additional_properties[COMMIT_TS_KEY])] = rows
    return found


@pytest.mark.parametrize("lake", ["delta", "iceberg"])
def test_each_snapshot_is_the_next_version_whatever_its_columns_are(
    lake: Lake, tmp_path: Path
) -> None:
    place = lake, tmp_path / "lake", None
    for commit_ts, columns in ((100, FIRST), (200, SECOND), (300, FIRST)):
        (done,) = register(*place, *snapshot(tmp_path, commit_ts, columns))
        assert done.is_new
        assert versions(lake, tmp_path)[commit_ts] == plain(columns)
    assert versions(lake, tmp_path) == {100: plain(FIRST), 200: plain(SECOND), 300: plain(FIRST)}


@pytest.mark.parametrize("lake", ["delta", "iceberg"])
def test_a_snapshot_is_registered_once_and_never_after_a_later_one(
    lake: Lake, tmp_path: Path
) -> None:
    place = lake, tmp_path / "lake", None
    later = snapshot(tmp_path, 200, SECOND)
    (first,) = register(*place, *later)
    (again,) = register(*place, *later)
    (earlier,) = register(*place, *snapshot(tmp_path, 100, FIRST))
    assert (first.is_new, again.is_new, earlier.is_new) == (True, False, False)
    assert first.version == again.version == earlier.version
    assert versions(lake, tmp_path) == {200: plain(SECOND)}


@pytest.mark.parametrize("lake", ["delta", "iceberg"])
def test_a_table_without_rows_is_a_table(lake: Lake, tmp_path: Path) -> None:
    empty = [(number, name, values.slice(0, 0)) for number, name, values in SECOND]
    register(lake, tmp_path / "lake", None, *snapshot(tmp_path, 100, empty))
    assert versions(lake, tmp_path) == {100: plain(empty)}


def test_a_version_outlives_the_snapshot_that_it_came_from(tmp_path: Path) -> None:
    path, described = snapshot(tmp_path, 100, FIRST)
    register("delta", tmp_path / "lake", None, path, described)
    for file in path.rglob("*.parquet"):
        file.unlink()
    assert versions("delta", tmp_path) == {100: plain(FIRST)}


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["rest", "glue", "hive"])
def test_snapshots_go_into_a_catalog_of_the_user_s(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CATALOGS[kind](tmp_path, monkeypatch), closing(load_catalog(NAME)) as catalog:
        root = tmp_path / "lake"
        catalog.create_namespace("shop", {"location": (tmp_path / "shop").as_uri()})
        for commit_ts, columns in ((100, FIRST), (200, SECOND), (300, FIRST)):
            register("iceberg", root, NAME, *snapshot(tmp_path, commit_ts, columns))
            assert catalog.load_table("shop.t").scan().to_arrow().to_pydict() == plain(columns)


def test_a_catalog_that_does_not_answer_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogs, "RETRY_S", 0.001)
    described(monkeypatch, uri="http://127.0.0.1:1")
    with pytest.raises(CatalogFailed, match=r"the catalog names: shop\.t: ConnectionError"):
        register("iceberg", tmp_path / "lake", NAME, *snapshot(tmp_path, 100, FIRST))


@pytest.mark.parametrize("lake", ["delta", "iceberg"])
@pytest.mark.parametrize("table", ["größe", "a%20b", "x%3F", "%23x", "%25%2F"])
def test_places_and_tables_may_have_odd_names(lake: Lake, table: str, tmp_path: Path) -> None:
    """What their libraries decode, or take for the end of a path, is in no name of a directory."""
    out = tmp_path / "a+b=c ü"
    for commit_ts in (100, 200):
        (done,) = register(lake, out / lake, None, *snapshot(out, commit_ts, FIRST, table=table))
        assert done.is_new
    if lake == "delta":
        (directory,) = (out / lake).iterdir()
        found = DeltaTable(str(directory)).to_pyarrow_table()
    else:
        catalog = SqlCatalog("binlogd", uri=f"sqlite:///{out / lake / 'catalog.db'}")
        with closing(catalog):
            found = catalog.load_table(("shop", table)).scan().to_arrow()
    assert found.to_pydict() == plain(FIRST)


@pytest.mark.parametrize(
    ("lake", "name"), [("delta", "a%20b"), ("iceberg", "a?b"), ("iceberg", "a#b")]
)
async def test_a_place_that_a_library_would_take_for_another_is_refused(
    lake: Lake, name: str, tmp_path: Path
) -> None:
    options = ExportOptions(
        data_dir=tmp_path, out=tmp_path / name, schema_history=b"[]", format=lake
    )
    with pytest.raises(ConfigError, match=f"no lake of {lake} can lie there"):
        await published(options)
    with pytest.raises(ConfigError, match=f"no lake of {lake} can lie there"):
        place_of(f"{lake}:{tmp_path / name}")
    assert not (tmp_path / name).exists()
