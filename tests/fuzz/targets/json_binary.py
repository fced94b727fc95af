"""JSON as TiDB stores it: a text of bounded size or CorruptRow; a text comes back."""

from __future__ import annotations

import json
from collections.abc import Iterator

from binlogd.errors import CorruptRow
from binlogd.tidb.jsonb import json_bytes, json_text


def seeds() -> Iterator[bytes]:
    """Of every kind of value."""
    for value in (
        None,
        True,
        5,
        -(1 << 63),
        (1 << 64) - 1,
        1.5,
        "text \u00e9",
        [],
        {},
        [1, "two", None, [3.5, {"k": []}]],
        {"a": 1, "bc": {"d": [True, False]}},
    ):
        yield json_bytes(json.dumps(value))
    yield b"\x0d\x0d\x04abcd"
    yield b"\x0e\x00\x00\x00\x00\x00\x00\xb2\x19"
    yield b"\x10\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00"


def run(data: bytes) -> None:
    """One document."""
    try:
        text = json_text(data)
    except CorruptRow:
        return
    assert len(text) <= 40 + 8 * len(data), "the text is much longer than the document"
    again = json_bytes(text)
    assert json_text(again) == json_text(json_bytes(json_text(again)))
