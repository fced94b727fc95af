"""Holds a published snapshot to what the model of a workload says of that moment."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from binlogd.snapshot.publishing.publish import read_manifest
from binlogd.tso import Tso
from tests.support import snapshot_reader
from tests.workload.generator import Workload


def check_against_model(snapshot: Path, workload: Workload, as_of: Tso) -> None:
    """Same tables, same columns, same rows, and nothing left out."""
    assert read_manifest(snapshot).left_out == ()
    tables, contents = workload.model.tables(as_of), workload.model.contents(as_of)
    found = snapshot_reader.tables(snapshot)
    assert found.keys() == {".".join(name) for name in tables}
    for name, table in tables.items():
        entry, held = found[".".join(name)], contents[name]
        assert [column.name for column in entry.columns] == list(held.columns)
        columns = [column for column in table.columns if column.is_public]
        expected = Counter(tuple(map(snapshot_reader.as_held, columns, row)) for row in held.rows)
        assert snapshot_reader.rows(snapshot, entry) == expected, f"{name} at {as_of}"
