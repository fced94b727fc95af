"""The messages of files and of the original's relay log: a transaction, or CorruptPayload."""

from __future__ import annotations

import contextlib

from binlogd.drainer.messages import pb, secondary
from binlogd.drainer.messages.named import NamedTransaction
from binlogd.drainer.messages.pb_write import ddl_binlog, dml_binlog
from binlogd.errors import CorruptPayload
from binlogd.tso import Tso
from tests.fuzz.targets import row


def seeds() -> list[bytes]:
    """A DDL, and rows as the sink writes them."""
    found = [ddl_binlog(Tso(7), "use d; CREATE TABLE t (a INT);")]
    for each in row.seeds():
        number, kind = divmod(each[0], 3)
        quick = row._QUICK[number]
        if quick is not None and kind < 2:
            event = (quick.insert, quick.update)[kind](each[1:])
            found.append(dml_binlog(Tso(1), [event]))
    return found


def run(data: bytes) -> None:
    """By each reader."""
    with contextlib.suppress(CorruptPayload):
        _read(data, pb.PbReader().named(data))
    if secondary.is_secondary(data):
        with contextlib.suppress(CorruptPayload):
            _read(data, secondary.decode(data))


def _read(data: bytes, found: NamedTransaction) -> None:
    assert pb.head_of(data).commit_ts == found.commit_ts
    list(found.rows())
