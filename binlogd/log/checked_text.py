"""Small texts with a checksum: one bit makes another number of a number, and nobody would see it.

    470611042594193417 12 #1a2b3c4d

The CRC-32C of what stands before it ends the line. What an older binlogd or a person wrote has
none, and counts as it stands, if it is a whole line. docs/FORMAT.md.
"""

from __future__ import annotations

from typing import TypeVar

import google_crc32c
import msgspec

T = TypeVar("T")

TEXT_BYTES_MAX = 64
"""Of the small files that hold such a line alone."""
_MARK = b" #"


def checksummed(text: bytes) -> bytes:
    """The line to write for a text without an end."""
    return b"%s%s%08x\n" % (text, _MARK, google_crc32c.value(text))


def text_in(line: bytes) -> bytes:
    """What `checksummed` was given. Raises ValueError for another, or one that was cut."""
    if not line.endswith(b"\n"):
        raise ValueError(f"it does not end as a line: {line!r}")
    text, mark, checksum = line[:-1].rpartition(_MARK)
    if not mark:
        return checksum
    if checksum != b"%08x" % google_crc32c.value(text):
        raise ValueError(f"its checksum does not match: {line!r}")
    return text


_KEY = b'{"checksum":"'
_NOTHING_YET = b'00000000",'
_SUM_END = len(_KEY) + 8


def checksummed_json(document: bytes) -> bytes:
    """A JSON object with one key or more, and before them `checksum`: the CRC-32C of all its bytes,
    with zeros in the place of the checksum."""
    text = _KEY + _NOTHING_YET + document.lstrip()[1:]
    return b"%s%08x%s" % (_KEY, google_crc32c.value(text), text[_SUM_END:])


def decoded_json(document: bytes, kind: type[T]) -> T:
    """What stands in a document that `checksummed_json` made. What has no checksum, as an older
    binlogd wrote it, counts as it stands. Raises ValueError."""
    if document.startswith(_KEY):
        stored = document[len(_KEY) : _SUM_END]
        text = _KEY + _NOTHING_YET[:8] + document[_SUM_END:]
        if stored != b"%08x" % google_crc32c.value(text):
            raise ValueError("its checksum does not match")
    try:
        return msgspec.json.decode(document, type=kind)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error
