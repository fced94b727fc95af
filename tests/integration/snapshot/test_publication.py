"""What follows an export: a lake's tables, an object store; here for a moment that is there."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from binlogd.errors import ConfigError, GaveUp, Refused, Unavailable
from binlogd.host.disk import alone_in
from binlogd.snapshot.export import FAILURE_LOG, ExportOptions
from binlogd.snapshot.formats.file_kinds import FileKind
from binlogd.snapshot.process.jobdir import job_directory
from binlogd.snapshot.publication import published, stored
from binlogd.snapshot.spec import MANIFEST_NAME
from tests.support.snapshots import Columns, snapshot

ROWS: Columns = [(1, "id", pa.array([1, 2, 3]))]


def options(out: Path, commit_ts: int, format_: str = "parquet") -> ExportOptions:
    snapshot(out, commit_ts, ROWS)
    return ExportOptions(
        data_dir=out / "none",
        out=out,
        schema_history=b"[]",
        as_of=str(commit_ts),
        format=format_,
    )


async def test_a_lake_is_registered_where_an_export_died_before(tmp_path: Path) -> None:
    asked = options(tmp_path, 100, "delta")
    first, again = await published(asked), await published(asked)
    assert [[each.is_new for each in done.registered] for done in (first, again)] == [
        [True],
        [False],
    ]
    table = DeltaTable(str(tmp_path / "delta" / "shop.t"))
    assert table.to_pyarrow_table().to_pydict() == {"id": [1, 2, 3]}


async def test_an_upload_leaves_nothing_here_and_is_done_once(tmp_path: Path) -> None:
    store = f"file://{tmp_path}/store"
    first = await published(options(tmp_path / "one", 100), store)
    again = await published(options(tmp_path / "two", 100), store)
    later = await published(replace(options(tmp_path / "three", 200), keep=1), store)
    assert (first.is_new, again.is_new, later.is_new) == (True, False, True)
    assert first.stored == again.stored
    assert [path.name for path in later.removed] == [first.stored.rpartition("/")[2]]
    there = {path.name for path in (tmp_path / "store").iterdir()}
    assert there == {"LATEST", later.stored.rpartition("/")[2]}
    assert not (tmp_path / "one").exists()


async def test_a_stored_snapshot_of_another_form_is_not_taken_for_the_one_asked_for(
    tmp_path: Path,
) -> None:
    store = f"file://{tmp_path}/store"
    first = await published(options(tmp_path / "one", 100), store)
    asked = options(tmp_path / "two", 100)
    shutil.rmtree(asked.out)
    snapshot(tmp_path / "two", 100, ROWS, kind=FileKind("csv"))
    with pytest.raises(Refused, match=f"{first.stored} is there already, as parquet"):
        await published(replace(asked, format="csv"), store)
    assert not asked.out.exists()


async def test_an_upload_leaves_alone_what_another_export_is_at(tmp_path: Path) -> None:
    """Both are staged in one directory, where they have one store."""
    store, asked = f"file://{tmp_path}/store", options(tmp_path / "here", 100)
    with job_directory(asked.out, ".staging-") as other:
        assert (await published(asked, store)).is_new
        assert [path.name for path in asked.out.iterdir()] == [other.name]
        (asked.out / FAILURE_LOG).touch()
        with alone_in(asked.out, ""), pytest.raises(Unavailable, match="has an export on its way"):
            await published(asked, store)
    await published(options(tmp_path / "here", 200), store)
    assert not asked.out.exists()


async def test_what_does_not_go_together_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="delta needs a directory, no object store"):
        await published(options(tmp_path, 100, "delta"), "file:///nowhere")
    with pytest.raises(ConfigError, match="only --format iceberg has a catalog"):
        await published(options(tmp_path, 200), None, "mine")


async def test_a_damaged_manifest_of_the_moment_is_named(tmp_path: Path) -> None:
    asked = options(tmp_path / "out", 100)
    (there,) = (tmp_path / "out").glob("snapshot-*")
    (there / MANIFEST_NAME).write_bytes(b'{"format": "\xff"}')
    with pytest.raises(Refused, match=r"is there already, and its manifest\.json does not decode"):
        await published(asked)
    store = tmp_path / "store"
    await published(options(tmp_path / "one", 100), f"file://{store}")
    (path,) = store.glob("snapshot-*/manifest.json")
    path.write_bytes(b'{"format": "\xff"}')
    (listed,) = (await stored(f"file://{store}")).exports
    assert f"{path.parent.name}: its manifest.json does not decode" in listed.problem


async def test_a_snapshot_is_said_to_be_there_where_latest_cannot_name_it(tmp_path: Path) -> None:
    """A copy that follows links makes a directory of LATEST."""
    (tmp_path / "LATEST").mkdir()
    with pytest.raises(GaveUp, match="LATEST: Is a directory; snapshot-100 is published"):
        options(tmp_path, 100)
    assert set(os.listdir(tmp_path)) == {"LATEST", "snapshot-100"}
    asked = replace(options(tmp_path / "other", 100), out=tmp_path)
    with pytest.raises(GaveUp, match="LATEST: Is a directory; snapshot-100 is published"):
        await published(asked)
