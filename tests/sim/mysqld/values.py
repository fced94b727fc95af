"""What columns hold: which values a type takes, how it compares them, and what it tells a client.

Held are an int, a float, a Decimal, text (str), bytes, or None. Dates and times are held as the
text that a server prints. A value that does not fit is cut with a warning, or refused in a strict
session, by the numbers of MariaDB's list of server errors. Text has a binary collation (`_bin`,
PAD SPACE), as TiDB's default is; a table with another one is refused.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, NamedTuple

from tests.sim.mysqld.lexing import Literal, NotSimulated

OUT_OF_RANGE, TOO_LONG, TRUNCATED, INCORRECT = 1264, 1406, 1265, 1366
_INTEGERS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
_TEXT_BYTES = {"tinytext": 255, "text": 65535, "mediumtext": (1 << 24) - 1, "longtext": 1 << 32}
_BLOB_BYTES = {"tinyblob": 255, "blob": 65535, "mediumblob": (1 << 24) - 1, "longblob": 1 << 32}
_TEMPORAL = {
    "date": re.compile(r"\d{4}-\d\d-\d\d"),
    "datetime": re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,6})?"),
    "timestamp": re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,6})?"),
    "time": re.compile(r"-?\d{2,3}:\d\d:\d\d(\.\d{1,6})?"),
}


class Fitted(NamedTuple):
    """A value as a column holds it, and the number of the error where it is not what was given."""

    value: Any
    code: int = 0


@dataclass(frozen=True)
class ColumnType:
    """`data_type` as information_schema calls it; `text` as SHOW CREATE TABLE does."""

    data_type: str
    text: str
    size: int = 0
    """Bits of an integer, characters or bytes of a string, digits of a DECIMAL, of a fraction."""
    scale: int = 0
    is_unsigned: bool = False
    members: tuple[str, ...] = ()
    collation: str = ""

    @property
    def is_text(self) -> bool:
        """Whether it holds characters."""
        return self.data_type in ("char", "varchar", "json", *_TEXT_BYTES)

    @property
    def is_quoted(self) -> bool:
        """Whether a literal of it stands in quotes."""
        return _family(self.data_type) in ("text", "bytes", "temporal")

    @property
    def implicit(self) -> Any:
        """What stands for NULL in a column that takes none, in a session that is not strict."""
        return _IMPLICIT[_family(self.data_type)]

    def fitted(self, value: Literal) -> Fitted:
        """A value that is not NULL. Raises NotSimulated for one that no sink sends."""
        return _FITTED[_family(self.data_type)](self, value)

    def key(self, value: Any) -> Any:
        """Equal for what the type compares as equal."""
        return value.rstrip(" ") if self.is_text else value


def _family(data_type: str) -> str:
    if data_type in _INTEGERS or data_type in ("bit", "year"):
        return "integer"
    if data_type in _TEXT_BYTES or data_type in ("char", "varchar", "json"):
        return "text"
    if data_type in _BLOB_BYTES or data_type in ("binary", "varbinary"):
        return "bytes"
    return data_type if data_type in _FITTED else "temporal"


def _integer(of: ColumnType, value: Literal) -> Fitted:
    if isinstance(value, str):
        if not re.fullmatch(r"-?\d+", value):
            raise _refused(of, value)
        value = int(value)
    if isinstance(value, Decimal):
        value = int(value.to_integral_value(ROUND_HALF_UP))
    if not isinstance(value, int):
        raise _refused(of, value)
    unsigned = of.is_unsigned or of.data_type == "bit"
    low, high = (
        (0, (1 << of.size) - 1) if unsigned else (-(1 << of.size - 1), (1 << of.size - 1) - 1)
    )
    if low <= value <= high:
        return Fitted(value)
    return Fitted(low if value < low else high, OUT_OF_RANGE)


def _textual(of: ColumnType, value: Literal) -> Fitted:
    if isinstance(value, bytes):
        value = value.decode("utf-8", "surrogateescape")
    if isinstance(value, int | float | Decimal):
        value = str(value)
    if not isinstance(value, str):
        raise _refused(of, value)
    try:
        encoded = value.encode()
    except UnicodeEncodeError:
        return Fitted(re.split("[\udc80-\udcff]", value)[0], INCORRECT)
    if of.data_type in ("char", "varchar"):
        if len(value) > of.size and value[of.size :].strip(" "):
            return Fitted(value[: of.size], TOO_LONG)
        kept = value[: of.size]
        return Fitted(kept.rstrip(" ") if of.data_type == "char" else kept)
    if len(encoded) > of.size:
        return Fitted(encoded[: of.size].decode("utf-8", "ignore"), TOO_LONG)
    return Fitted(value)


def _binary(of: ColumnType, value: Literal) -> Fitted:
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogateescape")
    if not isinstance(value, bytes):
        raise _refused(of, value)
    if len(value) > of.size:
        return Fitted(value[: of.size], TOO_LONG)
    return Fitted(value.ljust(of.size, b"\0") if of.data_type == "binary" else value)


def _decimal(of: ColumnType, value: Literal) -> Fitted:
    if isinstance(value, str | int):
        value = Decimal(value)
    if not isinstance(value, Decimal):
        raise _refused(of, value)
    kept = value.quantize(Decimal(1).scaleb(-of.scale), ROUND_HALF_UP)
    most = Decimal(10) ** (of.size - of.scale) - Decimal(1).scaleb(-of.scale)
    least = Decimal(0) if of.is_unsigned else -most
    if not least <= kept <= most:
        return Fitted(most if kept > most else least, OUT_OF_RANGE)
    return Fitted(kept)


def _floating(of: ColumnType, value: Literal) -> Fitted:
    if not isinstance(value, int | float | Decimal):
        raise _refused(of, value)
    number = float(value)
    if of.data_type == "float":
        number = struct.unpack(">f", struct.pack(">f", number))[0]
    return Fitted(number)


def _temporal(of: ColumnType, value: Literal) -> Fitted:
    if not isinstance(value, str) or not _TEMPORAL[of.data_type].fullmatch(value):
        raise _refused(of, value)
    whole, _, fraction = value.partition(".")
    if len(fraction) > of.size and fraction[of.size :].strip("0"):
        raise NotSimulated(f"a fraction that a {of.text} has no room for: {value}")
    kept = fraction[: of.size].ljust(of.size, "0")
    return Fitted(f"{whole}.{kept}" if of.size else whole)


def _enumerated(of: ColumnType, value: Literal) -> Fitted:
    """By number, as binlogd writes it; a default stands as a member's name."""
    if isinstance(value, str) and value in of.members:
        index = of.members.index(value)
        value = index + 1 if of.data_type == "enum" else 1 << index
    elif value == "" and of.data_type == "set":
        value = 0
    if not isinstance(value, int):
        raise _refused(of, value)
    most = len(of.members) if of.data_type == "enum" else (1 << len(of.members)) - 1
    if not 0 <= value <= most or (value == 0 and of.data_type == "enum"):
        return Fitted(0, TRUNCATED)
    return Fitted(value)


def _refused(of: ColumnType, value: object) -> NotSimulated:
    return NotSimulated(f"{value!r} for a column of type {of.text}")


_FITTED: dict[str, Callable[[ColumnType, Literal], Fitted]] = {
    "integer": _integer,
    "text": _textual,
    "bytes": _binary,
    "decimal": _decimal,
    "float": _floating,
    "double": _floating,
    "temporal": _temporal,
    "enum": _enumerated,
    "set": _enumerated,
}
_IMPLICIT: dict[str, Any] = {
    "integer": 0,
    "text": "",
    "bytes": b"",
    "decimal": Decimal(0),
    "float": 0.0,
    "double": 0.0,
    "temporal": "0000-00-00 00:00:00",
    "enum": 1,
    "set": 0,
}


def type_of(
    word: str,
    sizes: tuple[int, ...],
    members: tuple[str, ...],
    *,
    is_unsigned: bool,
    collation: str,
) -> ColumnType:
    """A type by the word of a column's definition. Raises NotSimulated."""
    name = {"integer": "int", "bool": "tinyint", "boolean": "tinyint", "numeric": "decimal"}.get(
        word.lower(), word.lower()
    )
    shown = f"{name}({','.join(map(str, sizes))})" if sizes else name
    shown += " unsigned" if is_unsigned else ""
    if name in _INTEGERS:
        return ColumnType(name, shown, _INTEGERS[name], is_unsigned=is_unsigned)
    if name in ("bit", "year"):
        size = 12 if name == "year" else (sizes or (1,))[0]
        return ColumnType(name, shown, size)
    if name in ("char", "varchar", "json", *_TEXT_BYTES):
        if not collation.endswith("_bin"):
            raise NotSimulated(f"text of the collation {collation!r}")
        size = _TEXT_BYTES["longtext"] if name == "json" else _TEXT_BYTES.get(name, 0)
        return ColumnType(name, shown, size or (sizes or (1,))[0], collation=collation)
    if name in _BLOB_BYTES or name in ("binary", "varbinary"):
        return ColumnType(name, shown, _BLOB_BYTES.get(name) or (sizes or (1,))[0])
    if name == "decimal":
        digits, scale = (*sizes, 0)[:2] if sizes else (10, 0)
        return ColumnType(name, shown, digits, scale, is_unsigned)
    if name in ("float", "double"):
        return ColumnType(name, shown)
    if name in _TEMPORAL:
        return ColumnType(name, shown, (sizes or (0,))[0])
    if name in ("enum", "set"):
        listed = ",".join(f"'{each}'" for each in members)
        return ColumnType(name, f"{name}({listed})", members=members, collation=collation)
    raise NotSimulated(f"a column of type {word}")
