"""Published snapshots that tests make by hand, without Spark."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from binlogd.snapshot.formats import file_kinds
from binlogd.snapshot.formats.columns import spark_type
from binlogd.snapshot.formats.file_kinds import PLAIN_PARQUET, FileKind
from binlogd.snapshot.formats.texts import checksum, checksum_text
from binlogd.snapshot.publishing.publish import publish
from binlogd.snapshot.spec import ColumnEntry, FileEntry, Manifest, TableEntry

Columns = Sequence[tuple[int, str, pa.Array]]
"""Of each column its TiDB id, its name and its values."""


def manifest(commit_ts: int, *tables: TableEntry, kind: FileKind = PLAIN_PARQUET) -> Manifest:
    """A manifest of these tables."""
    return Manifest(
        binlogd_version="1",
        spark_version="4",
        cluster_id=7,
        commit_ts=commit_ts,
        time="",
        resolved_ts=commit_ts,
        log=(),
        tables=tables,
        left_out=(),
        data_format=kind.format,
        layout=kind.layout,
    )


def snapshot(
    out: Path,
    commit_ts: int,
    columns: Columns,
    *,
    table: str = "t",
    kind: FileKind = PLAIN_PARQUET,
    mysql_types: Sequence[str] = (),
    primary_key: tuple[str, ...] = (),
) -> tuple[Path, Manifest]:
    """A published snapshot of one table in the schema `shop`."""
    staged = out / f".staged-{commit_ts}"
    directory = staged / f"shop.{table}"
    directory.mkdir(parents=True)
    types = list(mysql_types) or [""] * len(columns)
    fields = [
        pa.field(name, values.type, metadata={"PARQUET:field_id": str(number)})
        for number, name, values in columns
    ]
    rows = pa.Table.from_arrays([values for *_, values in columns], schema=pa.schema(fields))
    path = directory / f"part-0.{kind.suffix}"
    file = file_kinds.create(path, kind, rows.schema, types, table)
    file.write(rows)
    file.close()
    content = path.read_bytes()
    summed = checksum_text(sum(checksum(batch.columns) for batch in rows.to_batches()))
    entries = []
    for (number, name, values), mysql in zip(columns, types, strict=True):
        kept = kind.kept(values.type, mysql)
        entries.append(
            ColumnEntry(number, name, mysql, str(kept.type), spark_type(kept.type), kept.encoding)
        )
    entry = TableEntry(
        database="shop",
        table=table,
        table_id=7,
        rows=rows.num_rows,
        columns=tuple(entries),
        left_out_columns=(),
        losses={},
        files=(
            FileEntry(
                f"shop.{table}/{path.name}",
                rows.num_rows,
                len(content),
                hashlib.sha256(content).hexdigest(),
                checksum=summed,
            ),
        ),
        checksum=summed,
        primary_key=primary_key,
    )
    described = manifest(commit_ts, entry, kind=kind)
    return publish(staged, out, described), described
