"""The original's relay log and messages: ours are its bytes."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from binlogd.drainer.messages.named import NamedRow
from binlogd.drainer.messages.secondary import decode, is_secondary
from binlogd.drainer.messages.secondary_write import SecondaryEncoder, ddl_message, dml_message
from binlogd.drainer.txn import Ddl, Dml, Txn
from binlogd.tidb.row import RowDecoder
from binlogd.tools.raw import rows_of
from binlogd.wire import peek
from tests.support.artefacts import ARTEFACTS
from tests.support.file_logs import recorded_txns
from tests.support.pb_reader import file_records
from tests.support.recordings_reader import RECORDINGS, committed

GOLDEN = ARTEFACTS / "drainer_relay_keys.tar.gz"


def message(txn: Txn, payload: bytes) -> bytes:
    if isinstance(txn, Ddl):
        query = peek.body(payload).ddl_query
        return ddl_message(txn.commit_ts, txn.database, txn.table, query)
    assert isinstance(txn, Dml)
    tables = []
    for change in txn.changes:
        encoder = SecondaryEncoder(change.table)
        tables.append(encoder.table(encoder.mutations(change.mutation)))
    return dml_message(txn.commit_ts, tables)


def recorded(name: str) -> Iterator[tuple[Txn, bytes]]:
    payloads = {each.commit_ts: bytes(each.payload) for each in committed(RECORDINGS / name)}
    for txn in recorded_txns(name):
        if isinstance(txn, Ddl | Dml):
            yield txn, payloads[txn.commit_ts]


def test_the_messages_are_those_of_the_original(tmp_path: Path) -> None:
    with tarfile.open(GOLDEN) as archive:
        archive.extractall(tmp_path, filter="data")
    theirs = {
        decode(record.payload).commit_ts: record.payload
        for _, record in file_records(tmp_path / "relay")
    }
    ours = {txn.commit_ts: message(txn, payload) for txn, payload in recorded("keys")}
    assert len(theirs) == 93
    assert [ts for ts in theirs if ours[ts] != theirs[ts]] == []


@pytest.mark.parametrize("name", ["types", "keys"])
def test_what_is_written_reads_back_as_it_was(name: str) -> None:
    for txn, payload in recorded(name):
        written = message(txn, payload)
        assert is_secondary(written)
        found = decode(written)
        assert found.commit_ts == txn.commit_ts
        if isinstance(txn, Ddl):
            assert found.ddl is not None
            assert found.ddl.text == peek.body(payload).ddl_query.decode()
            continue
        assert isinstance(txn, Dml)
        wanted = [
            row for change in txn.changes for row in rows_of(change, RowDecoder(change.table))
        ]
        for mine, known in zip(found.rows(), wanted, strict=True):
            assert values(mine, known) == values(known, known)


def values(row: NamedRow, known: NamedRow) -> dict[str, tuple[object, object]]:
    """Of the columns that the row itself tells."""
    told = {column.name for column in known.columns}
    return {each.name: (each.old, each.new) for each in row.columns if each.name in told}
