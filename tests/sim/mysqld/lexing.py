"""Statements as shapes: the text with `?` for each literal, and the literals beside it.

What binlogd sends has few shapes and many values, so each shape is parsed once. A run of rows
`(?,?),(?,?)` becomes `(?,?)*`, and a list of one column `IN (?,?,?)` becomes `IN (?*)`, whatever
its length. A session speaks utf8mb4 with backslash escapes on and without ANSI_QUOTES; anything
else is refused where it would be set.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache
from typing import NamedTuple

Literal = int | float | Decimal | str | bytes | None
"""A number; text ('...'); bytes (_binary'...'); NULL."""

_SCANNED = re.compile(
    rb"""`(?:[^`]|``)*`                                    # 1 is not set: kept
    |(?<!\bIS\ )(?<!\bNOT\ )\b(?P<null>NULL)\b
    |(?P<text>(?:_binary)?'(?:[^'\\]|''|\\.)*')
    |(?P<hex>\b0x[0-9a-fA-F]+\b|\b[xX]'[0-9a-fA-F]*')
    |@{0,2}[A-Za-z_$\x80-\xff][\w$\x80-\xff]*
    |(?P<number>-?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)
    |(?P<comment>/\*.*?\*/)""",
    re.DOTALL | re.VERBOSE,
)
_ROWS = re.compile(rb"(\(\?(?:,\?)*\))(?:,\1)*(?= ON | AS |$)")
_PAIRS = re.compile(rb" IN \((\(\?(?:,\?)+\))(?:,\1)*\)")
_LIST = re.compile(rb" IN \(\?(?:,\?)*\)")
_WITH_LISTS = (b"INSERT", b"REPLACE", b"DELETE", b"SELECT", b"UPDATE")
_ESCAPED = re.compile(r"\\(.)|''", re.DOTALL)
_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a"}
_TOKEN = re.compile(r"`((?:[^`]|``)*)`|(@{0,2}[A-Za-z_$\x80-\U0010ffff][\w$]*)|\s+|(<>|<=|>=|!=|.)")


class NotSimulated(Exception):
    """A statement, or a part of one, that the simulated server does not know: it never guesses."""


class Statement(NamedTuple):
    """One statement: its shape, and the literals in their order."""

    shape: bytes
    args: Sequence[Literal]


class Token(NamedTuple):
    """`kind` is "name" (in back-ticks), "word" (as written) or "sign"; `?` is a sign."""

    kind: str
    text: str


def statements(text: bytes) -> list[Statement]:
    """The statements of a query, which are joined by semicolons. Raises NotSimulated."""
    args: list[Literal] = []

    def kept(found: re.Match[bytes]) -> bytes:
        kind = found.lastgroup
        if kind is None:
            if found[0].startswith(b"`") and (b";" in found[0] or b"?" in found[0]):
                raise NotSimulated(f"a name with a semicolon or a question mark: {found[0]!r}")
            return found[0]
        if kind == "comment":
            if found[0].startswith((b"/*!", b"/*M!")):
                raise NotSimulated(f"a comment that is executed: {found[0]!r}")
            return b" "
        args.append(_READ[kind](found[0]))
        return b"?"

    if b"?" in text or b'"' in text:
        _refuse_in_code(text)
    made: list[Statement] = []
    at = 0
    for piece in _SCANNED.sub(kept, text).split(b";"):
        count = piece.count(b"?")
        made.append(Statement(_collapsed(piece.strip()), args[at : at + count]))
        at += count
    return made


def _refuse_in_code(text: bytes) -> None:
    code = _SCANNED.sub(b"", text)
    if b"?" in code or b'"' in code:
        raise NotSimulated(f"a double quote or a question mark outside of a literal: {text!r}")


def _collapsed(shape: bytes) -> bytes:
    if not shape.startswith(_WITH_LISTS):
        return shape
    if b" IN (" in shape:
        shape = _PAIRS.sub(rb" IN (\1*)", shape)
        shape = _LIST.sub(rb" IN (?*)", shape)
    elif shape.startswith((b"INSERT", b"REPLACE")):
        shape = _ROWS.sub(rb"\1*", shape, count=1)
    return shape


def _text(raw: bytes) -> Literal:
    body = raw[raw.index(b"'") + 1 : -1]
    said = body.decode("utf-8", "surrogateescape")
    if "\\" in said or "''" in said:
        said = _ESCAPED.sub(_unescaped, said)
    return said.encode("utf-8", "surrogateescape") if raw.startswith(b"_") else said


def _unescaped(found: re.Match[str]) -> str:
    sign = found[1]
    if sign is None:
        return "'"
    if sign in "%_":  # patterns keep the backslash, and only there it means something
        return "\\" + sign
    return _ESCAPES.get(sign, sign)


def _hex(raw: bytes) -> Literal:
    digits = raw[2:-1] if raw[1:2] == b"'" else raw[2:]
    return bytes.fromhex(digits.decode().rjust((len(digits) + 1) // 2 * 2, "0"))


def _number(raw: bytes) -> Literal:
    said = raw.decode()
    if "e" in said or "E" in said:
        return float(said)
    return Decimal(said) if "." in said else int(said)


_READ = {"null": lambda _: None, "text": _text, "hex": _hex, "number": _number}


@lru_cache(4096)
def tokens(shape: bytes) -> tuple[Token, ...]:
    """The tokens of a shape."""
    found = []
    for match in _TOKEN.finditer(shape.decode("utf-8", "surrogateescape")):
        if match[1] is not None:
            found.append(Token("name", match[1].replace("``", "`")))
        elif match[2] is not None:
            found.append(Token("word", match[2]))
        elif match[3] is not None:
            found.append(Token("sign", match[3]))
    return tuple(found)
