"""Words inside a part of a DDL that MariaDB does not read, put where only a MySQL does.

A comment from `/*!50700` to `/*!99999` is stepped over by MariaDB, one that begins with `/*M!` by
MySQL. Checks go into such comments as a whole: TiDB before 7.2 reads them and does not keep to
them, so rows that break one may come, and the upstream is the judge of its rows.

Whoever steps over such a comment looks for its end in names and strings too. In strings the signs
are written so that they are not there (`*\\/`); what has them in a name is left out.
Source: pingcap/tidb parser/ast/ddl.go (what is printed); MariaDB's and MySQL's reference manuals.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from binlogd.tidb.ddl_text import Word, words_and_comments, words_and_marks

_COLLATIONS = {
    "utf8mb4_0900_ai_ci": "utf8mb4_uca1400_nopad_ai_ci",
    "utf8mb4_0900_as_ci": "utf8mb4_uca1400_nopad_as_ci",
    "utf8mb4_0900_as_cs": "utf8mb4_uca1400_nopad_as_cs",
    "utf8mb4_0900_bin": "utf8mb4_nopad_bin",
}


class Edit(msgspec.Struct, frozen=True):
    """A stretch of a statement, and what takes its place."""

    begin: int
    end: int
    text: str


def applied(statement: str, edits: Iterable[Edit]) -> str:
    """The statement after edits that do not overlap."""
    for edit in sorted(edits, key=lambda edit: edit.begin, reverse=True):
        statement = statement[: edit.begin] + edit.text + statement[edit.end :]
    return statement


def marked(said: str, version: int, left_out: list[str]) -> str:
    """What a MySQL from this version on reads, and MariaDB does not.

    Comments of TiDB's and for MariaDB that are in it go. Where no comment can hold it, it is "" and
    `left_out` has one more.
    """
    text, edits = said, []
    begin: int | None = None
    for word in words_and_comments(text):
        if word.kind == "comment" and begin is None:
            edits.append(Edit(word.begin, word.end, ""))
        elif word.kind == "open":
            begin = word.begin
        elif word.kind == "close" and begin is not None:
            edits.append(Edit(begin, word.end, ""))
            begin = None
        elif word.kind == "text" and begin is None:
            spelled = word.text.replace("*/", "*\\/").replace("/*", "/\\*")
            edits.append(Edit(word.begin, word.end, spelled))
    text = applied(text, edits)
    if "*/" in text or "/*" in text:
        left_out.append(said)
        return ""
    return f"/*!{version} {text} */"


def with_marked_words(statement: str, left_out: list[str]) -> str:
    """The statement, which is one for MySQL, as MariaDB reads it too."""
    found = words_and_marks(statement)
    if len(found) < 2 or not found[0].says("ALTER", "CREATE"):
        return statement
    stretches = list(_collations(found))
    if found[1].says("TABLE"):
        stretches += [*_checks(found), *_nulls(found), *_engines(found), *_validation(found)]
        stretches += _documents(found)
    elif found[1].says("DATABASE", "SCHEMA"):
        stretches += _encryption(found)
    inside = in_marks(found)
    edits = []
    for a, b, version, text in stretches:
        if not text and a in inside:
            continue
        begin, end = found[a].begin, found[b].end
        text = text or marked(statement[begin:end], version, left_out)
        edits.append(Edit(begin, end, text))
    return applied(statement, edits)


def with_long_text(statement: str, indexed: Iterable[str]) -> str:
    """With VARCHAR and VARBINARY as TEXT and BLOB, but for columns of these names (lower case).

    TiDB has no limit on the length of a row below that of a transaction; MariaDB has 65535 bytes,
    of which a TEXT takes twelve at most.
    """
    found = words_and_marks(statement)
    kept = frozenset(indexed)
    edits = []
    for at, word in enumerate(found[:-3]):
        is_type = word.says("VARCHAR", "VARBINARY") and found[at + 1].text == "("
        is_size = is_type and found[at + 2].text.isdigit() and found[at + 3].text == ")"
        if is_size and found[at - 1].is_name and found[at - 1].text.lower() not in kept:
            kind = "TEXT" if word.says("VARCHAR") else "BLOB"
            edits.append(Edit(word.begin, found[at + 3].end, kind))
    return applied(statement, edits)


Stretch = tuple[int, int, int, str]
"""First and last word, the MySQL that reads them, or what takes their place."""


def in_marks(found: Sequence[Word]) -> set[int]:
    """The words that are in a comment already."""
    inside, within = False, set()
    for at, word in enumerate(found):
        inside = word.kind == "open" or (inside and word.kind != "close")
        if inside:
            within.add(at)
    return within


def values_of(found: Sequence[Word], *options: str) -> Iterator[tuple[int, int]]:
    """Where one of these options is, and its value."""
    for at, word in enumerate(found[:-1]):
        value = at + 1 + (found[at + 1].text == "=")
        if word.says(*options) and value < len(found):
            yield at, value


def depths_of(found: Sequence[Word]) -> list[int]:
    """How many parentheses each word is in; the parentheses themselves count as outside."""
    depths, depth = [], 0
    for word in found:
        if word.kind == "sign" and word.text == ")":
            depth -= 1
        depths.append(depth)
        if word.kind == "sign" and word.text == "(":
            depth += 1
    return depths


def _documents(found: Sequence[Word]) -> Iterator[Stretch]:
    """The JSON `null` as a DEFAULT (`added`): MySQL takes none of JSON, and needs none."""
    for at, word in enumerate(found[:-2]):
        if word.says("JSON") and found[at + 1].says("DEFAULT") and found[at + 2].text == "'null'":
            yield at + 1, at + 2, 0, "/*M! DEFAULT 'null' */"


def _collations(found: Sequence[Word]) -> Iterator[Stretch]:
    inside = in_marks(found)
    for at, value in values_of(found, "COLLATE"):
        theirs = found[value].text.strip("'\"").lower()
        ours = _COLLATIONS.get(theirs)
        if ours is not None and at not in inside:
            yield value, value, 0, f"/*!80000 {theirs} *//*M! {ours} */"


def _checks(found: Sequence[Word]) -> Iterator[Stretch]:
    """CHECK of a column; those of a table are parts of their own, and marked as such."""
    for at, word in enumerate(found[:-1]):
        if not word.says("CHECK") or found[at + 1].text != "(":
            continue
        begin, end = at, _closing(found, at + 1)
        if found[begin - 1].says("CONSTRAINT"):
            begin -= 1
        elif found[begin - 2].says("CONSTRAINT"):
            begin -= 2
        end += found[end + 1].says("NOT") if end + 2 < len(found) else 0
        end = end + 1 if end + 1 < len(found) and found[end + 1].says("ENFORCED") else end
        yield begin, end - found[end].says("NOT"), 80016, ""


def _nulls(found: Sequence[Word]) -> Iterator[Stretch]:
    """NULL and NOT NULL of a generated column."""
    for at, word in enumerate(found[:-1]):
        if not word.says("AS") or found[at + 1].text != "(":
            continue
        next_at = _closing(found, at + 1) + 1
        while next_at < len(found) and found[next_at].text not in (",", ")"):
            if found[next_at].text == "(":
                next_at = _closing(found, next_at)
            if found[next_at].says("NULL"):
                yield next_at - found[next_at - 1].says("NOT"), next_at, 50706, ""
            next_at += 1


def _engines(found: Sequence[Word]) -> Iterator[Stretch]:
    """TiDB reads any engine and has one; another of MariaDB's could not be written to safely."""
    depths = depths_of(found)
    for at, value in values_of(found, "ENGINE"):
        if not depths[at] and found[value].kind in ("bare", "quoted", "text"):
            yield value, value, 0, "InnoDB"


def _validation(found: Sequence[Word]) -> Iterator[Stretch]:
    for at, word in enumerate(found[:-1]):
        if word.says("WITH", "WITHOUT") and found[at + 1].says("VALIDATION"):
            yield at, at + 1, 50706, ""


def _encryption(found: Sequence[Word]) -> Iterator[Stretch]:
    for at, value in values_of(found, "ENCRYPTION"):
        if found[value].kind == "text":
            yield at - found[at - 1].says("DEFAULT"), value, 80016, ""


def _closing(found: Sequence[Word], opening: int) -> int:
    """The parenthesis that closes this one, or the last word."""
    depth = 0
    for at in range(opening, len(found)):
        if found[at].kind == "sign":
            depth += (found[at].text == "(") - (found[at].text == ")")
            if depth == 0:
                return at
    return len(found) - 1
