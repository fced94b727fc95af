"""Compares a published snapshot with the tables of a live server, by one checksum for each table.

The server sums up what it has: of each row the CRC-32 of its values' texts. The same is computed of
the snapshot's rows, so only three numbers of a table travel. Columns that servers print in their
own way (FLOAT, DOUBLE, JSON), that lost values on their way out, or whose text may mean several
values (an ENUM or SET with an empty label) are left out, by name.

Source for the idea: tidb-tools sync_diff_inspector; `tools/verify` compares two servers alike.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from binlogd.drainer import sql
from binlogd.drainer.mysql.connection import MySqlServer, SqlRefused, SqlSession
from binlogd.errors import ConfigError
from binlogd.snapshot.formats import read_files
from binlogd.snapshot.spec import ColumnEntry, Manifest, TableEntry
from binlogd.tidb.schema import Named
from binlogd.tools.checksums import Checksums, checksums, checksums_of
from binlogd.tools.row_differences import differences
from binlogd.tools.row_texts import INTEGERS, LABEL, expression, kind_of, texts_of
from binlogd.tools.verify import shape_of
from binlogd.tso import NO_TS, Tso

_OWN_PRINT = frozenset({"float", "double", "json"})


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a table of the snapshot compares; `reason` is "" when it is equal. `left_out` are columns
    that were not compared."""

    database: str
    table: str
    rows: int
    reason: str = ""
    left_out: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()
    """Some of the rows that differ, and how."""


async def compare(
    server: MySqlServer, at_ts: Tso, snapshot: Path, manifest: Manifest
) -> AsyncIterator[Verdict]:
    """The verdict on each table of a snapshot. `at_ts`: a TiDB is read as of then, NO_TS is now.

    Raises DownstreamUnavailable, ConfigError where rows of this format cannot be read back.
    """
    if not read_files.can_be_read(manifest):
        raise ConfigError(
            f"{snapshot} holds {manifest.data_format} in the {manifest.layout} layout, which is"
            " not read back; import it, and compare with `binlogd verify`"
        )
    session = await SqlSession.connect(server)
    try:
        if at_ts != NO_TS:
            await session.run(b"SET SESSION tidb_snapshot = '%d'" % at_ts)
        for table in manifest.tables:
            yield await _verdict(session, snapshot, manifest, table)
    except SqlRefused as error:
        raise ConfigError(f"{server} cannot be compared with: {error}") from error
    finally:
        session.close()


async def _verdict(
    session: SqlSession, snapshot: Path, manifest: Manifest, table: TableEntry
) -> Verdict:
    shape = await shape_of(session, Named(table.database, table.table))
    theirs = {column.name.lower() for column in shape.columns}
    if not theirs:
        return Verdict(table.database, table.table, table.rows, "is not there")
    compared = [each for each in table.columns if _is_comparable(table, each)]
    missing = [each.name for each in compared if each.name.lower() not in theirs]
    if missing:
        return Verdict(
            table.database, table.table, table.rows, f"has no column {', '.join(missing)}"
        )
    left_out = tuple(each.name for each in table.columns if each not in compared)
    ours = Checksums(rows=table.rows)
    if compared:
        ours = checksums_of(texts_of(snapshot, manifest, table, compared))
    name = sql.qualified(table.database, table.table)
    there = await checksums(session, name, [expression(each) for each in compared])
    reason = ""
    if there.rows != ours.rows:
        reason = f"has {there.rows} rows, the snapshot {ours.rows}"
    elif compared and there.counted != there.rows:
        reason = "has rows that are too long for the server's max_allowed_packet to be summed up"
    elif compared and there != ours:
        reason = "has other values"
    said: tuple[str, ...] = ()
    if reason:
        said = await differences(session, snapshot, manifest, table, compared)
    return Verdict(table.database, table.table, table.rows, reason, left_out, said)


def _is_comparable(table: TableEntry, column: ColumnEntry) -> bool:
    kind = kind_of(column)
    is_narrowed = kind in INTEGERS and column.arrow_type == "bool"
    is_ambiguous = kind in ("enum", "set") and "" in LABEL.findall(column.mysql_type)
    is_told = not is_narrowed and not is_ambiguous and not table.losses.get(column.name)
    return kind not in _OWN_PRINT and is_told
