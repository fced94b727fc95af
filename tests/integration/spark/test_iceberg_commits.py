"""What a version of an Iceberg table takes with it from those before: their rows, and no more."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.table import StaticTable, Table, Transaction
from pyiceberg.table import update as table_update
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableUpdate
from pyiceberg.table.update.snapshot import _OverwriteFiles

from binlogd.spark.lake.content import LakeContent
from binlogd.spark.lake.manifest import LakeTable
from binlogd.spark.lake.moving import Lake
from binlogd.spark.lake.place import place_of
from binlogd.spark.lake.rows import KEY_COLUMN, KEY_ID, KeyChanges

SCHEMA = pa.schema(
    pa.field(name, type_, metadata={"PARQUET:field_id": str(number)})
    for name, type_, number in (("n", pa.int64(), 1), (KEY_COLUMN, pa.binary(), KEY_ID))
)
KEEPS = range(100)
VERSIONS = 12


@pytest.fixture
def content(tmp_path: Path) -> LakeContent:
    return Lake(place_of(f"iceberg:{tmp_path / 'lake'}")).content()


@pytest.mark.parametrize("before", [0, 6])
def test_a_version_names_no_manifest_of_files_that_went(
    content: LakeContent, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    """A file with keys that never change, and keys of which some change and go each time: every
    version has its rows, also when all others are there, and when pyiceberg's own overwrite, which
    drops no manifest, has made those `before`."""
    heads = [begun(content)]
    model = [dict.fromkeys(KEEPS, 0)]
    for version in range(1, VERSIONS):
        put, gone = range(200 + version, 200 + 10 * version), 199 + version
        changes = KeyChanges(rows(put, version), keys([gone]))
        with monkeypatch.context() as patched:
            if version < before:
                patched.setattr("binlogd.spark.lake.iceberg.Replacing", overwriting)
            heads.append(content.merge(heads[-1], SCHEMA, [changes], 1))
        model.append({**model[-1], **dict.fromkeys(put, version)})
        model[-1].pop(gone, None)
    for head, held in zip(heads, model, strict=True):
        assert held_by(content, head) == held
        assert head.rows == len(held)
    last = StaticTable.from_metadata(heads[-1].metadata)
    snapshot = last.current_snapshot()
    assert snapshot is not None
    named = [
        [each.data_file.file_path for each in manifest.fetch_manifest_entry(last.io)]
        for manifest in snapshot.manifests(last.io)
        if manifest.added_snapshot_id != snapshot.snapshot_id
    ]
    assert len(named) == 1, "that of the file which nobody changed"
    assert len(last.snapshots()) == VERSIONS


def test_a_commit_copies_what_a_table_tells_once_for_each_state_of_it(
    content: LakeContent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each copy is as large as the table has versions."""
    head, copy, states = begun(content), table_update.update_table_metadata, list[TableMetadata]()

    def copied(metadata: TableMetadata, updates: tuple[TableUpdate, ...]) -> TableMetadata:
        states.append(copy(metadata, updates))
        return states[-1]

    monkeypatch.setattr("pyiceberg.table.update_table_metadata", copied)
    content.merge(head, SCHEMA, [KeyChanges(rows([1], 1), keys([2]))], 2)
    assert [len(each.snapshots) for each in states] == [1, 2]


def begun(content: LakeContent) -> LakeTable:
    """A table with the rows that stay."""
    head = content.kind.create(LakeTable(1, "table-1", 0), SCHEMA, "shop.orders", 1)
    return content.append(head, SCHEMA, rows(KEEPS, 0).to_batches(), 1)


def overwriting(_: Table, changes: Transaction, properties: dict[str, str]) -> _OverwriteFiles:
    """As versions were made before (0171)."""
    return changes.update_snapshot(snapshot_properties=properties).overwrite()


def rows(ids: Iterable[int], value: int) -> pa.Table:
    """A value for each of these keys."""
    found = keys(ids)
    return pa.Table.from_arrays([pa.array([value] * len(found), pa.int64()), found], schema=SCHEMA)


def keys(ids: Iterable[int]) -> pa.Array:
    """As they are told."""
    return pa.array([each.to_bytes(8, "big") for each in ids], pa.binary())


def held_by(content: LakeContent, head: LakeTable) -> dict[int, int]:
    """The values of a version by key; each is there once."""
    found = pa.Table.from_batches(content.read(head, SCHEMA)).to_pydict()
    pairs = list(zip((int.from_bytes(each) for each in found[KEY_COLUMN]), found["n"], strict=True))
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)
