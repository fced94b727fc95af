"""Rows of a snapshot as the texts that a server is asked for of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from binlogd.snapshot.bases.read_back import micros_of
from binlogd.snapshot.formats import read_files
from binlogd.snapshot.spec import ColumnEntry, Manifest, TableEntry
from binlogd.tidb.times import duration_text
from binlogd.tools.checksums import NULL, text_of

LABEL = re.compile(r"'((?:[^']|'')*)'")
INTEGERS = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint"})


def kind_of(column: ColumnEntry) -> str:
    """The name of a MySQL type without its sizes."""
    return re.split(r"[( ]", column.mysql_type)[0]


def expression(column: ColumnEntry) -> bytes:
    """What a server is asked for: the text of a column."""
    return text_of(column.name, kind_of(column))


def texts_of(
    snapshot: Path, manifest: Manifest, table: TableEntry, columns: Sequence[ColumnEntry]
) -> Iterator[tuple[str, ...]]:
    """The texts of these columns, row by row. Raises as `read_files.batches`."""
    places = {column.name: place for place, column in enumerate(table.columns)}
    renders = [(places[each.name], each, _renderer(each)) for each in columns]
    for file in table.files:
        for batch in read_files.batches(snapshot / file.name, manifest, table):
            texts = [
                [
                    NULL if value is None else render(value)
                    for value in read_files.decoded(batch.column(place), each).to_pylist()
                ]
                for place, each, render in renders
            ]
            yield from zip(*texts, strict=True)


_Render = Callable[[Any], str]


def _renderer(column: ColumnEntry) -> _Render:
    """A value as the server's expression makes it."""
    kind = kind_of(column)
    if kind in ("enum", "set"):
        labels = [label.replace("''", "'") for label in LABEL.findall(column.mysql_type)]
        numbers = {label: number for number, label in enumerate(labels)}
        if kind == "enum":
            return lambda label: f"{numbers.get(label, -1) + 1:X}"
        return lambda found: f"{_mask(found, numbers):X}"
    if kind == "bit":
        return lambda value: f"{int(value):X}"
    text = _text_renderer(kind, column.mysql_type)
    return lambda value: text(value).hex().upper()


def _mask(found: str | list[str], numbers: dict[str, int]) -> int:
    labels = found.split(",") if isinstance(found, str) else found
    return sum(1 << numbers[label] for label in labels if label)


def _text_renderer(kind: str, mysql_type: str) -> Callable[[Any], bytes]:
    digits = re.search(r"\((\d)\)", mysql_type)
    fraction = int(digits[1]) if digits else 0
    cut = 19 + (fraction + 1 if fraction else 0)
    texts: dict[str, Callable[[Any], str]] = {
        "year": lambda value: f"{value:04d}",
        "decimal": lambda value: value if isinstance(value, str) else f"{value:f}",
        "date": str,
        "datetime": lambda value: _moment(value)[:cut],
        "timestamp": lambda value: _moment(value)[:cut],
        "time": lambda value: _span(value, fraction),
        **dict.fromkeys(INTEGERS, lambda value: str(int(value))),
    }
    if kind in texts:
        text = texts[kind]
        return lambda value: text(value).encode()
    return lambda value: value if isinstance(value, bytes) else value.encode()


def _moment(value: Any) -> str:
    if isinstance(value, str):
        return value
    return f"{value:%Y-%m-%d %H:%M:%S.%f}".rjust(26, "0")


def _span(value: Any, fraction: int) -> str:
    return value if isinstance(value, str) else duration_text(micros_of(value) * 1000, fraction)
