"""Which comments of a DDL are code, and what may stand in those that are made here.

Invariant. What upstream is inside a string, a name or a comment is never code downstream.
Why it holds. A comment that no TiDB reads goes. What TiDB reads as code whatever version it names
(`/*! ... */`) becomes plain code, so that no server decides anew. `/*T! ... */` stays: every other
server steps over it, to the first `*/` wherever that stands; so one that has `*/` inside a name or
a string has two readings, and is refused. A server that steps over a conditional comment looks for
`/*` and `*/` in names and strings as well: bytes that have them are never put into one.
Source: pingcap/tidb parser/lexer.go; MariaDB sql/sql_lex.cc and MySQL's (consume_comment).
"""

from __future__ import annotations

import re

from binlogd.drainer.ddl.marks import Edit, applied, values_of
from binlogd.tidb.ddl_text import PRINTED, words, words_and_comments

_IN_DOUBLE_QUOTES = re.compile(r"""\\(.)|""|'""", re.DOTALL)
_ENGINE = re.compile(r"\w*")


class TwoReadings(Exception):
    """A statement that upstream and downstream could take for different things; the text tells."""


def without_comments(statement: str) -> str:
    """The statement as a server reads it who knows no comment but TiDB's own. Raises TwoReadings.

    A string in double quotes that has a backslash is written in single ones: under ANSI_QUOTES it
    would end elsewhere.
    """
    edits = []
    unwraps = is_own = False
    found = words_and_comments(statement)
    for word, following in zip(found, [*found[1:], None], strict=False):
        if word.kind == "comment":
            edits.append(Edit(word.begin, word.end, " "))
        elif word.kind == "open":
            # `/*!90000 SHARD_ROW_ID_BITS=4 */`: TiDB up to 3.0 hid it from every MySQL of its time
            is_hidden = (
                word.text == "/*!90000" and following and following.says("SHARD_ROW_ID_BITS")
            )
            unwraps = word.text.startswith("/*!") and not is_hidden
            is_own = not unwraps
        elif word.kind == "text" and word.text.startswith('"') and "\\" in word.text:
            edits.append(Edit(word.begin, word.end, _in_single_quotes(word.text)))
        if is_own and word.kind in ("text", "quoted") and "*/" in statement[word.begin : word.end]:
            raise TwoReadings("a name or a string in a comment of TiDB's has `*/`")
        if word.kind in ("open", "close") and unwraps:
            edits.append(Edit(word.begin, word.end, " "))
        if word.kind == "close":
            unwraps = is_own = False
    return applied(statement, edits)


def with_names_quoted(statement: str) -> str:
    """With bare names in quotes where MySQL 9 could take them for the begin of a string ($a$)."""
    names = [word for word in words(statement) if word.kind == "bare" and word.text[0] == "$"]
    return applied(statement, [Edit(each.begin, each.end, f"`{each.text}`") for each in names])


def printed_anew(statement: str, typed: str) -> bool:
    """Whether TiDB printed what a user typed, which leaves strings without escapes.

    Else it is as typed, perhaps with comments put in. Printing only ever takes backslashes away,
    and what it leaves as many of reads the same either way.
    """
    return statement.count("\\") < typed.count("\\")


def check_printed(statement: str, typed: str) -> None:
    """Raises TwoReadings where TiDB's printer leaves it open what was a value: it prints the name
    of an engine, which may be any string, without quotes."""
    found = words(typed)
    for value in (found[at] for _, at in values_of(found, "ENGINE")):
        if value.kind not in ("text", "quoted"):
            continue
        name = value.text[1:-1] if value.kind == "text" else value.text
        if not _ENGINE.fullmatch(name):
            raise TwoReadings(f"{name!r} is no name of an engine, and printed like code")


def check_escapes(statement: str) -> None:
    """Raises TwoReadings where strings end elsewhere if a backslash stands for itself, and nobody
    tells whether it does (a file holds what TiDB printed, and not what was typed)."""
    if "\\" not in statement:
        return
    with_them = {
        (word.begin, word.end)
        for word in words_and_comments(statement)
        if word.kind in ("text", "quoted")
    }
    if with_them != {found.span() for found in PRINTED.finditer(statement)}:
        raise TwoReadings("with its backslashes it can be read in two ways")


def _in_single_quotes(text: str) -> str:
    def spelled(found: re.Match[str]) -> str:
        if found[0] == '""' or found[1] == '"':
            return '"'
        return "''" if found[0] == "'" or found[1] == "'" else found[0]

    return "'" + _IN_DOUBLE_QUOTES.sub(spelled, text[1:-1]) + "'"
