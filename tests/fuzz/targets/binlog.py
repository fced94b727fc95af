"""A binlog's head, canonical form and row changes, by scanner and by betterproto."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from binlogd.errors import MalformedBinlog
from binlogd.wire import peek
from binlogd.wire.binlogs import BINLOG
from binlogd.wire.fields import each_field
from binlogd.wire.generated import binlog as pb
from binlogd.wire.mutation import encode_mutations, mutations
from binlogd.wire.text import binlog_text
from tests.support.recordings_reader import RECORDINGS, records

_GROUP = 3


def seeds() -> Iterator[bytes]:
    """What TiDB sent, the small ones."""
    for name in ("keys", "ddl"):
        sent = (each.payload for each in records(RECORDINGS / name) if len(each.payload) < 400)
        yield from islice(sent, 0, 60, 3)


def run(data: bytes) -> None:
    """One payload."""
    try:
        head = peek.peek(data)
    except MalformedBinlog:
        try:
            peek.head_and_canonical(data)
        except MalformedBinlog:
            return
        raise AssertionError("head_and_canonical takes what peek refuses") from None
    found, canonical = peek.head_and_canonical(data)
    assert found == head
    assert peek.peek(canonical) == head
    assert peek.head_and_canonical(canonical)[1] == canonical
    plain = peek.plain_numbers(canonical)
    assert plain is None or plain == (head.tp, head.start_ts, head.commit_ts)
    body = peek.body(canonical)
    message = pb.Binlog().parse(_without_groups(canonical))
    assert (message.start_ts, message.commit_ts, message.ddl_job_id) == head[1:]
    assert (message.prewrite_value, message.ddl_query) == (body.prewrite_value, body.ddl_query)
    binlog_text(canonical, chars_max=1000)
    try:
        version, tables = mutations(body.prewrite_value)
    except MalformedBinlog:
        return
    encoded = encode_mutations(version, tables)
    assert mutations(encoded) == (version, tables)
    rows = pb.PrewriteValue().parse(encoded)
    assert [bytes(each.sequence) for each in rows.mutations] == [each.sequence for each in tables]


def _without_groups(data: bytes) -> bytes:
    """betterproto knows none: it takes what is in them for fields of the message."""
    return b"".join(
        data[each.begin : each.end]
        for each in each_field(data, "Binlog", BINLOG)
        if each.number or data[each.begin] & 7 != _GROUP
    )
