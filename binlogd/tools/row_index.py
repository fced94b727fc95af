"""Which transactions of a Pump's log may hold changes of a row: a file beside each segment.

    pump/shard-N/rows/NNNNNN.rows     frames, each of a stretch of NNNNNN.vlog, without gaps

A frame has a head, and sorted entries of 12 bytes: a hash, and a commit_ts. What is hashed is the
name of a table with one of its rows' key values (`key_of`), and the name alone.

Invariant. A transaction whose Commit lies in a frame's stretch and that changed a row is among the
entries of that row, or of `ANY`. There may be others too, as hashes meet: who looks decides by the
rows themselves.
Why it holds. Entries are made of decoded rows, by the names that they had then, in the words in
which they are looked for (`text_of`). Heads and blocks of entries have checksums; what does not
verify, and whatever follows it in the file, is not there, and the log is read instead.

Source: the sorted tables of LevelDB, with a block index and a checksum for each block.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from zlib import crc32

import google_crc32c
import msgspec

from binlogd.log.pointer import FileId
from binlogd.tidb.columns import Value
from binlogd.tools.shown import json_value, value_text
from binlogd.tso import Tso

ROWS = "rows"
ANY = ""
"""What a transaction has whose rows nobody can tell, or whose rows are too many to be listed."""
UNKNOWN_KEYS = "\0"
"""In the place of a column: a transaction whose keys in this table cannot be told."""
FORMAT = 1

_PREFIX = struct.Struct("<4sII")  # magic, bytes of the head, its CRC-32C
_MAGIC = b"rows"
_ENTRY = struct.Struct(">IQ")
_BLOCK_BYTES = 256 * _ENTRY.size


class FrameHead(msgspec.Struct, array_like=True, frozen=True):
    """`begin` to `end` is the stretch of the segment; the timestamps are of its commits.

    `tables` are database, table, and the columns whose values are entries for all of its rows.
    `ddls` are those of DDLs. Each block of entries has its first hash in `firsts` and its CRC-32C
    in `checksums`.
    """

    format: int
    begin: int
    end: int
    min_ts: int
    max_ts: int
    tables: list[tuple[str, str, tuple[str, ...]]]
    ddls: list[int]
    entries_bytes: int
    firsts: list[int]
    checksums: list[int]


class RowFrame:
    """One stretch of a log; its entries are read as they are asked for."""

    def __init__(self, head: FrameHead, entries: memoryview) -> None:
        self.head, self._entries = head, entries

    def commits(self, key: str) -> set[Tso] | None:
        """The transactions with this key; None where the entries are damaged."""
        head, wanted = self.head, crc32(key.encode("utf-8", "surrogateescape"))
        prefix, found = wanted.to_bytes(4, "big"), set[Tso]()
        number = max(0, bisect_left(head.firsts, wanted) - 1)
        while number < len(head.firsts) and head.firsts[number] <= wanted:
            at = number * _BLOCK_BYTES
            block = bytes(self._entries[at : at + _BLOCK_BYTES])
            if google_crc32c.value(block) != head.checksums[number]:
                return None
            at = block.find(prefix)
            while at >= 0:  # ends: it grows
                if at % _ENTRY.size == 0:
                    found.add(Tso(_ENTRY.unpack_from(block, at)[1]))
                at = block.find(prefix, at + 1)
            number += 1
        return found


def key_of(database: str, table: str, column: str = "", text: str = "") -> str:
    """What is hashed of a row, or of a table."""
    return f"{database}\0{table}\0{column.lower()}\0{text}"


def text_of(value: Value, mysql_type: str) -> str:
    """The one text that an entry has for a value."""
    shown = json_value(value, mysql_type)
    return shown if isinstance(shown, str) else value_text(value, mysql_type)


def texts_asked(text: str) -> Collection[str] | None:
    """The `text_of` of every value that somebody means by a text; None: that cannot be told."""
    if "\\" in text or text.startswith("{"):
        return None
    is_quoted = len(text) > 1 and text[0] == text[-1] == "'"
    quoted = [text[1:-1].replace("''", "'")] if is_quoted else []
    return {text, *quoted, *(["NULL"] if text.upper() == "NULL" else [])}


def encode_frame(
    begin: int,
    end: int,
    commits: Collection[int],
    tables: Iterable[tuple[str, str, tuple[str, ...]]],
    ddls: Iterable[int],
    keys: Iterable[tuple[str, Tso]],
) -> bytes:
    """A frame of the commits in a stretch, with the keys of each."""
    entries = b"".join(
        sorted({_ENTRY.pack(crc32(key.encode("utf-8", "surrogateescape")), ts) for key, ts in keys})
    )
    blocks = [entries[at : at + _BLOCK_BYTES] for at in range(0, len(entries), _BLOCK_BYTES)]
    head = msgspec.msgpack.encode(
        FrameHead(
            FORMAT,
            begin,
            end,
            min(commits, default=0),
            max(commits, default=0),
            list(tables),
            list(ddls),
            len(entries),
            [_ENTRY.unpack_from(block)[0] for block in blocks],
            [google_crc32c.value(block) for block in blocks],
        )
    )
    return _PREFIX.pack(_MAGIC, len(head), google_crc32c.value(head)) + head + entries


def frames(content: memoryview, begin_at: int = 0) -> Iterator[tuple[RowFrame, int]]:
    """The frames of a file as far as they are whole and without gaps, and where each ends; the
    first is of the log from `begin_at` on."""
    at, end = 0, begin_at
    while at + _PREFIX.size <= len(content):
        magic, length, checksum = _PREFIX.unpack_from(content, at)
        begin = at + _PREFIX.size
        raw = bytes(content[begin : begin + length])
        if magic != _MAGIC or google_crc32c.value(raw) != checksum:
            return
        try:
            head = msgspec.msgpack.decode(raw, type=FrameHead)
        except msgspec.DecodeError:
            return
        at = begin + length + head.entries_bytes
        if head.format != FORMAT or head.begin != end or at > len(content):
            return
        end = head.end
        yield RowFrame(head, content[begin + length : at]), at


def rows_file(value: Path, fid: FileId) -> Path:
    """Where the frames of a segment are; `value` is the directory of the segments."""
    return value.with_name(ROWS) / f"{fid:06d}.{ROWS}"


def picked(
    frame: RowFrame, table: tuple[str, str, tuple[str, ...]], row: Mapping[str, str]
) -> set[Tso] | None:
    """The transactions of a frame that may have changed such a row of a table, `row` by column and
    text; None where the entries are damaged."""
    database, name, columns = table
    found: set[Tso] | None = None
    for column, text in row.items():
        texts = texts_asked(text) if column.lower() in columns else None
        if texts is None:
            continue
        of_column = set[Tso]()
        for each in texts:
            some = frame.commits(key_of(database, name, column, each))
            if some is None:
                return None
            of_column |= some
        found = of_column if found is None else found & of_column
    if found is None:
        return frame.commits(key_of(database, name))
    unknown = frame.commits(key_of(database, name, UNKNOWN_KEYS))
    return None if unknown is None else found | unknown
