"""What tables are called in the text of a statement: as they were created, or as they are routed.

TiDB ignores the case of names, others may not. Whatever follows one of some keywords and is called
like a table is taken for one; where it is a column after all, nothing changes, since no server
minds the case of columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from binlogd.drainer.ddl.edits import quoted
from binlogd.drainer.ddl.marks import Edit, applied
from binlogd.drainer.filtering.route import TableRouter
from binlogd.tidb.ddl_text import Word, words
from binlogd.tidb.known_tables import Named
from binlogd.tidb.model import Table
from binlogd.tidb.schema import SchemaTracker

_BEFORE_A_NAME = (
    "TABLE",
    "VIEW",
    "DATABASE",
    "SCHEMA",
    "TRUNCATE",
    "ON",
    "LIKE",
    "REFERENCES",
    "FROM",
    "JOIN",
)


class Calls:
    """Looks names up in the schema as it is now."""

    def __init__(self, schema: SchemaTracker, router: TableRouter) -> None:
        self._schema, self._router = schema, router

    def exact(
        self, statement: str, database: str, made: Table | None = None, other: Named | None = None
    ) -> str:
        """The statement with its tables called as downstream; `database` is that of its table.

        `made` is the table that a CREATE or ALTER TABLE leaves, `other` the second table that it
        names: TiDB looks for it in the database of a session that nobody tells, but the job does.
        """
        found = words(statement)
        edits = list(self._after_keywords(found, database, made, other))
        if self._router.has_rules:
            begun = {edit.begin for edit in edits}
            edits += [each for each in self._qualified(found) if each.begin not in begun]
        return applied(statement, edits)

    def _after_keywords(
        self, found: Sequence[Word], database: str, made: Table | None, other: Named | None
    ) -> Iterator[Edit]:
        for at, word in enumerate(found):
            if not word.says(*_BEFORE_A_NAME):
                continue
            is_second = at > 1
            while at + 1 < len(found) and found[at + 1].says("IF", "NOT", "EXISTS"):
                at += 1
            names = [each for each in found[at + 1 : at + 4] if each.is_name or each.text == "."]
            if word.says("LIKE") and made is not None and len(names) == 1:
                text = self._liked(names[0].text, database, made)
                if text:
                    yield Edit(names[0].begin, names[0].end, text)
            elif names and names[0].is_name:
                meant = _meant(word, names, made, other if is_second else None)
                if meant is not None and meant.database.lower() != database.lower():
                    text = quoted(self._router.name(meant))
                    yield Edit(names[0].begin, names[0].end, text)
                else:
                    yield from self._call(word, names, database)

    def _call(self, keyword: Word, names: Sequence[Word], database: str) -> Iterator[Edit]:
        if keyword.says("DATABASE", "SCHEMA"):
            name = self._schema.find(names[0].text, "")
            if name is not None:
                yield from _called(names[0], self._router.name(name).database)
            return
        if len(names) == 3 and names[1].text == "." and names[2].is_name:
            name = self._schema.find(names[0].text, names[2].text)
            if name is not None:
                yield from self._pair(names, name)
            return
        name = self._schema.find(database, names[0].text)
        if name is None:
            return
        routed = self._router.name(name)
        if self._router.has_rules:
            yield Edit(names[0].begin, names[0].end, quoted(routed))
        else:
            yield from _called(names[0], routed.table)

    def _pair(self, names: Sequence[Word], name: Named) -> Iterator[Edit]:
        routed = self._router.name(name)
        yield from _called(names[0], routed.database)
        yield from _called(names[2], routed.table)

    def _qualified(self, found: Sequence[Word]) -> Iterator[Edit]:
        """`db`.`table` anywhere, as in the columns of a view."""
        for one, dot, other in zip(found, found[1:], found[2:], strict=False):
            if one.is_name and dot.text == "." and other.is_name:
                name = self._schema.find(one.text, other.text)
                if name is not None:
                    yield from self._pair((one, dot, other), name)

    def _liked(self, name: str, database: str, made: Table) -> str:
        """The table that another was made like: the session's database, which nobody tells, had it.
        "" where none is known that looks like that."""
        found = [
            (named.database != database, quoted(self._router.name(named)))
            for named, table in self._schema.tables()
            if named.table.lower() == name.lower()
            and table.id != made.id
            and _looks(table) == _looks(made)
        ]
        return min(found)[1] if found else ""


def _meant(
    keyword: Word, names: Sequence[Word], made: Table | None, other: Named | None
) -> Named | None:
    """The table that a name without a database means, where the job tells."""
    if len(names) > 1 and names[1].text == ".":
        return None
    if keyword.says("TABLE"):
        return other
    if not keyword.says("REFERENCES") or made is None:
        return None
    named = [Named(*each) for each in made.references]
    wanted = names[0].text.lower()
    return next((each for each in named if each.database and each.table.lower() == wanted), None)


def _called(word: Word, name: str) -> Iterator[Edit]:
    if word.text != name:
        yield Edit(word.begin, word.end, quoted(name))


def _looks(table: Table) -> list[tuple[object, ...]]:
    kinds = [(column.name.lower(), column.field_type) for column in table.columns]
    return [(name, kind.tp, kind.flen, kind.decimal, kind.collate) for name, kind in kinds]
