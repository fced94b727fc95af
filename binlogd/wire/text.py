"""A binlog as text: protobuf's compact text form, as the original's `/debug/binlog` shows it.

Source: tidb-binlog pump/server.go, BinlogByTS; gogo/protobuf proto/text.go.
"""

from __future__ import annotations

from collections.abc import Iterable

from binlogd.binlog import BinlogType
from binlogd.errors import MalformedBinlog
from binlogd.wire import peek
from binlogd.wire.mutation import Mutation, mutations

_MUTATIONS = ("Insert", "Update", "DeleteID", "DeletePK", "DeleteRow")
_ESCAPES = {
    ord("\n"): "\\n",
    ord("\r"): "\\r",
    ord("\t"): "\\t",
    ord('"'): '\\"',
    ord("\\"): "\\\\",
}


def binlog_text(payload: bytes, *, chars_max: int) -> str:
    """The fields of a binlog, and under them its rows; cut after about `chars_max` characters.
    Raises MalformedBinlog."""
    head, body = peek.peek(payload), peek.body(payload)
    kind = next((each.name.capitalize() for each in BinlogType if each == head.tp), str(head.tp))
    stamps = ("start_ts", head.start_ts), ("commit_ts", head.commit_ts)
    of_ddl = ("ddl_job_id", body.ddl_job_id), ("ddl_schema_state", body.ddl_schema_state)
    key = peek.prewrite_key(payload)
    parts = [f"tp:{kind}", *(f"{name}:{number}" for name, number in stamps if number)]
    if key:
        parts.append(f"prewrite_key:{_quoted(key, chars_max)}")
    if body.ddl_query:
        parts.append(f"ddl_query:{_quoted(body.ddl_query, chars_max)}")
    parts += [f"{name}:{number}" for name, number in of_ddl if number]
    text = " ".join(parts) + " "
    if body.prewrite_value:
        text += "\n\n PrewriteValue: " + _rows(body.prewrite_value, chars_max)
    if key:
        text += "\n\n GetMvccByEncodedKey failed: TiKV is not asked here; ask /mvcc/key of a TiDB"
    return text + "\n"


def _rows(prewrite_value: bytes, chars_max: int) -> str:
    try:
        version, tables = mutations(prewrite_value)
    except MalformedBinlog:
        return "<Unmarshallable>"
    text = f"\nschema_version:{version} "
    for table in tables:
        text += f"mutations:<{' '.join(_table(table, chars_max))} > "
        if len(text) > chars_max:
            return f"{text[:chars_max]}\n… cut: {len(prewrite_value)} bytes in all"
    return text


def _table(table: Mutation, chars_max: int) -> Iterable[str]:
    yield f"table_id:{table.table_id}"
    named = [
        ("inserted_rows", table.inserted),
        ("updated_rows", table.updated),
        ("deleted_rows", table.deleted),
    ]
    for name, rows in named:
        for row in rows:
            yield f"{name}:{_quoted(row, chars_max)}"
            chars_max -= len(row)
            if chars_max <= 0:
                return
    for kind in table.sequence[:chars_max]:
        yield f"sequence:{_MUTATIONS[kind] if kind < len(_MUTATIONS) else kind}"


def _quoted(value: bytes, chars_max: int) -> str:
    shown = "".join(
        _ESCAPES.get(byte) or (chr(byte) if 0x20 <= byte < 0x7F else f"\\{byte:03o}")
        for byte in value[: max(chars_max, 0)]
    )
    return f'"{shown}"'
