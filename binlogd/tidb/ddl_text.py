"""The few facts about a DDL that stand only in its text.

TiDB's jobs name the outcome (ids, TableInfo); which database a RENAME TABLE moves each table to,
and which column a CHANGE COLUMN renames, is not in them. The text is read word by word, without a
grammar, as TiDB reads it: strings and comments are stepped over, its own comments (`/*T! ... */`)
are not, nor are those of MySQL (`/*! ... */`), which it reads whatever version they name.
Source: pingcap/tidb parser/lexer.go.
"""

from __future__ import annotations

import re

import msgspec

_KINDS = r"""
      (?P<space>\s+)
    | (?P<comment>\#[^\n]* | --(?=[\x00-\x20\x7f\udc85\udca0]|\Z)[^\n]* | /\*(?!T?!).*?\*/)
    | (?P<open>/\*T?!(?:\[[a-z_,\s]*\]|\d{5,6})?)
    | (?P<quoted>`(?:[^`]|``)*`)
    | (?P<text>'(?:[^'\\]|''|\\.)*' | "(?:[^"\\]|""|\\.)*")
    | (?P<bare>[\w$]+)
    | (?P<sign>.)
    """
_OUTSIDE = re.compile(_KINDS, re.VERBOSE | re.DOTALL)
_INSIDE = re.compile(r"(?P<close>\*/) |" + _KINDS, re.VERBOSE | re.DOTALL)
"""In a comment that counts; elsewhere `*/` may be a star before a comment."""
PRINTED = re.compile(r"`(?:[^`]|``)*`|'(?:[^']|'')*'")
"""A name or a string of TiDB's printer, in which a backslash stands for itself."""


class Rename(msgspec.Struct, frozen=True):
    """One `old TO new`; a database is "" where the text does not name it."""

    old_database: str
    old_table: str
    new_database: str
    new_table: str


class Word(msgspec.Struct, frozen=True):
    """A name, keyword, string or sign; `text` of a quoted name is the name itself.

    The kinds are `bare`, `quoted`, `text`, `sign`, `open` and `close` of a comment that counts, and
    `comment` for one that does not.
    """

    kind: str
    text: str
    begin: int
    end: int

    def says(self, *keywords: str) -> bool:
        """Whether it is one of these keywords (given in capitals)."""
        return self.kind == "bare" and self.text.upper() in keywords

    @property
    def is_name(self) -> bool:
        """It can name something."""
        return self.kind in ("bare", "quoted")


def words(statement: str) -> list[Word]:
    """The words of a statement; what stands in comments of TiDB or for MySQL versions counts."""
    return [word for word in words_and_marks(statement) if word.kind not in ("open", "close")]


def words_and_marks(statement: str) -> list[Word]:
    """The words, and where the comments that count begin and end."""
    return [word for word in words_and_comments(statement) if word.kind != "comment"]


def words_and_comments(statement: str) -> list[Word]:
    """All but the spaces."""
    found = []
    pattern, at = _OUTSIDE, 0
    while at < len(statement):  # ends: one character at least is taken each time
        match = pattern.match(statement, at)
        assert match is not None, "a sign is any character"
        kind, text, at = match.lastgroup or "", match.group(), match.end()
        if kind == "space":
            continue
        if kind in ("open", "close"):
            pattern = _INSIDE if kind == "open" else _OUTSIDE
        if kind == "quoted":
            text = text[1:-1].replace("``", "`")
        found.append(Word(kind, text, match.start(), at))
    return found


def escaped(printed: str) -> str:
    """A text of TiDB's printer with backslashes doubled in its strings, as others read them.
    Source: pingcap/tidb parser/format/format.go (WriteString)."""
    return PRINTED.sub(
        lambda found: found[0].replace("\\", "\\\\") if found[0].startswith("'") else found[0],
        printed,
    )


def renamed_tables(statement: str) -> list[Rename]:
    """The renames of a RENAME TABLE, in order; empty when it is none."""
    left = words(statement)[::-1]
    if not (_take(left, "RENAME") and _take(left, "TABLE", "TABLES")):
        return []
    renames = []
    while left:  # each turn takes words, or leaves
        old = next_name(left)
        if old is None or not _take(left, "TO"):
            return []
        new = next_name(left)
        if new is None:
            return []
        renames.append(Rename(*old, *new))
        if not (left and left[-1].text == ","):
            break
        left.pop()
    return renames


def changed_columns(statement: str) -> dict[str, str]:
    """New name to old name, both lower-cased, of each CHANGE COLUMN in an ALTER TABLE."""
    found = {}
    all_words = words(statement)
    for at, word in enumerate(all_words[:-3]):
        if not word.says("CHANGE"):
            continue
        names = all_words[at + 1 : at + 6]
        if names[0].says("COLUMN"):
            names = names[1:]
        if len(names) > 3 and names[0].says("IF") and names[1].says("EXISTS"):
            names = names[2:]
        old, new = names[0], names[1]
        if old.is_name and new.is_name:
            found[new.text.lower()] = old.text.lower()
    return found


def _take(left: list[Word], *keywords: str) -> bool:
    if left and left[-1].says(*keywords):
        left.pop()
        return True
    return False


def next_name(left: list[Word]) -> tuple[str, str] | None:
    """Takes a name off the end of words in reverse, and what stands before its dot, "" for none."""
    if not (left and left[-1].is_name):
        return None
    first = left.pop().text
    if not (left and left[-1].text == "." and len(left) > 1 and left[-2].is_name):
        return "", first
    left.pop()
    return first, left.pop().text
