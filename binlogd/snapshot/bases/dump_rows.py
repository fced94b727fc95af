"""The rows in files of a Dumpling dump, as raw values.

Read is what Dumpling writes without being asked otherwise: INSERT statements, and CSV with `,`, `"`
and a header; both with backslash escapes, NULL as `\\N` in CSV. A file is read piece by piece,
whatever its size; `writing.adapt` makes of the values what the log holds.
Source: pingcap/tidb dumpling/export (writer_util.go, sql_type.go).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from binlogd.errors import Corrupt
from binlogd.snapshot.bases.dump import DumpFile

PIECE_BYTES = 1 << 20
ROW_BYTES_MAX = 256 << 20
"""A row that is longer than this is taken for damage."""

COMMENT_BYTES_MAX = 16 << 10

Raw = bytes | None
"""A value as the file has it, without quotes and escapes; None is NULL."""


class DumpRows(NamedTuple):
    """Some rows of a file; `names` is None where the file names no columns."""

    names: Sequence[str] | None
    rows: list[list[Raw]]


def rows_of(directory: str, file: DumpFile, rows_max: int) -> Iterator[DumpRows]:
    """The rows of a data file, so many at a time. Raises Corrupt, OSError."""
    path = Path(directory, file.name)
    with pa.input_stream(str(path), compression="detect") as stream:
        scanner = _Scanner(path, stream)
        yield from (_csv_rows if file.is_csv else _sql_rows)(scanner, rows_max)


def says_utc(directory: str, file: DumpFile) -> bool:
    """Whether a file says itself that its TIMESTAMPs are in UTC. Raises OSError."""
    with pa.input_stream(str(Path(directory, file.name)), compression="detect") as stream:
        return _SQL_UTC.search(stream.read(COMMENT_BYTES_MAX)) is not None


class _Scanner:
    """Matches patterns against a stream, whatever its length."""

    def __init__(self, path: Path, stream: pa.NativeFile) -> None:
        self._path, self._stream = path, stream
        self._buffer, self._at, self._behind = b"", 0, 0
        self._is_over = False

    def match(self, pattern: re.Pattern[bytes], ahead: int = 1) -> re.Match[bytes] | None:
        """The pattern at this place, which is passed if it is there.

        A match that comes so near to the end of what is read so far may go on behind it.
        """
        while True:
            found = pattern.match(self._buffer, self._at)
            if self._is_over or (found is not None and found.end() + ahead <= len(self._buffer)):
                if found is not None:
                    self._at = found.end()
                return found
            self._read()

    def is_at_end(self) -> bool:
        """Whether nothing is left."""
        while self._at >= len(self._buffer) and not self._is_over:
            self._read()
        return self._at >= len(self._buffer)

    def fail(self, reason: str) -> Corrupt:
        """An error about this place."""
        return Corrupt(f"{self._path} at offset {self._behind + self._at}: {reason}")

    def _read(self) -> None:
        if len(self._buffer) - self._at > ROW_BYTES_MAX:
            raise self.fail(f"no row ends within {ROW_BYTES_MAX >> 20} MiB")
        size = max(PIECE_BYTES, len(self._buffer) - self._at)  # so that a long row costs no square
        piece = self._stream.read(size)
        self._is_over = not piece
        self._behind += self._at
        self._buffer, self._at = self._buffer[self._at :] + piece, 0


_ESCAPES = {b"0": b"\0", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"Z": b"\x1a"}
_ESCAPED = {
    b"'": re.compile(rb"\\(.)|''", re.DOTALL),
    b'"': re.compile(rb'\\(.)|""', re.DOTALL),
}


def _unquoted(text: bytes) -> bytes:
    quote, text = text[:1], text[1:-1]
    if b"\\" not in text and quote not in text:
        return text
    return _ESCAPED[quote].sub(
        lambda found: _ESCAPES.get(found[1], found[1]) if found[1] else quote, text
    )


_SQL_VALUE = rb"(?:x'[0-9A-Fa-f]*'|'(?:[^'\\]|\\.|'')*+'|[^,()'\s]++)"
_SQL_SPACE = re.compile(rb"(?:\s++|/\*(?:[^*]|\*(?!/))*+\*/\s*;?|--[^\n]*+\n)*+")
_SQL_UTC = re.compile(rb"SET TIME_ZONE\s*=\s*'\+00:00'")
_SQL_NAME = rb"`(?:[^`]|``)*+`"
_SQL_HEAD = re.compile(
    rb"INSERT INTO (?:%b\.)?%b\s*(\((?:[^)`]|%b)*+\))?\s*VALUES\s*"
    % (_SQL_NAME, _SQL_NAME, _SQL_NAME)
)
_SQL_ROW = re.compile(
    rb"\(\s*(" + _SQL_VALUE + rb"(?:\s*,\s*" + _SQL_VALUE + rb")*+)\s*\)\s*([,;])\s*", re.DOTALL
)
_SQL_EACH = re.compile(_SQL_VALUE, re.DOTALL)
_QUOTED_NAME = re.compile(rb"`((?:[^`]|``)*)`")


def _sql_rows(scanner: _Scanner, rows_max: int) -> Iterator[DumpRows]:
    while True:
        scanner.match(_SQL_SPACE, COMMENT_BYTES_MAX)
        if scanner.is_at_end():
            return
        head = scanner.match(_SQL_HEAD)
        if head is None:
            raise scanner.fail("an INSERT INTO ... VALUES is wanted")
        names = None
        if head[1]:
            names = [each.replace(b"``", b"`").decode() for each in _QUOTED_NAME.findall(head[1])]
        rows: list[list[Raw]] = []
        is_over = False
        while not is_over:
            row = scanner.match(_SQL_ROW)
            if row is None:
                raise scanner.fail("a row in brackets is wanted")
            rows.append([_literal(each) for each in _SQL_EACH.findall(row[1])])
            is_over = row[2] == b";"
            if len(rows) >= rows_max or is_over:
                yield DumpRows(names, rows)
                rows = []


def _literal(text: bytes) -> Raw:
    if text.startswith(b"'"):
        return _unquoted(text)
    if text.startswith(b"x'"):
        return bytes.fromhex(text[2:-1].decode())
    return None if text == b"NULL" else text


_CSV_FIELD = rb'(?:"(?:[^"\\]|\\.|"")*+"|(?:\\N|[^,"\r\n])*+)'
_CSV_LINE = re.compile(rb"(" + _CSV_FIELD + rb"(?:," + _CSV_FIELD + rb")*+)(?:\r?\n|\Z)", re.DOTALL)
_CSV_EACH = re.compile(rb"(" + _CSV_FIELD + rb")(?:,|\Z)", re.DOTALL)


def _csv_rows(scanner: _Scanner, rows_max: int) -> Iterator[DumpRows]:
    names: list[str] | None = None
    rows: list[list[Raw]] = []
    while not scanner.is_at_end():
        line = scanner.match(_CSV_LINE)
        if line is None:
            raise scanner.fail("a line of CSV is wanted")
        fields = [_field(each) for each in _fields(line[1])]
        if names is None:
            names = [(each or b"").decode() for each in fields]
            continue
        rows.append(fields)
        if len(rows) >= rows_max:
            yield DumpRows(names, rows)
            rows = []
    if rows:
        yield DumpRows(names, rows)


def _fields(line: bytes) -> Iterator[bytes]:
    at = 0
    while True:
        found = _CSV_EACH.match(line, at)
        assert found is not None, "a line is made of fields"
        yield found[1]
        at = found.end()
        if at >= len(line) and not found[0].endswith(b","):
            return


def _field(text: bytes) -> Raw:
    if text.startswith(b'"'):
        return _unquoted(text)
    return None if text == b"\\N" else text
