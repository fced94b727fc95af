"""A DDL that lacks words is read, or UnsupportedDdl: a next word is asked for before it is read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from binlogd.tidb.ddl_text import words_and_comments
from tests.fuzz.targets import ddl_text

MORE = (
    "CREATE UNIQUE INDEX i ON t ((lower(a)), b) ALGORITHM = INPLACE",
    "CREATE GLOBAL TEMPORARY TABLE t (a INT) ON COMMIT DELETE ROWS",
    "ALTER TABLE t ALTER INDEX i INVISIBLE, DROP CHECK c, CHANGE COLUMN IF EXISTS a b INT",
    "CREATE TABLE t (a INT DEFAULT NEXTVAL(s), b INT DEFAULT NEXT VALUE FOR s.x)",
)


def cut(statement: str) -> Iterator[str]:
    """Its beginnings, its ends, and what is left without one word or without several."""
    taken = words_and_comments(statement)
    for at, word in enumerate(taken):
        yield statement[: word.begin]
        yield statement[word.end :]
        for behind in taken[at : at + 4]:
            yield statement[: word.begin] + statement[behind.end :]


@pytest.mark.parametrize("length_max", [75, pytest.param(10_000, marks=pytest.mark.soak)])
def test_a_ddl_without_some_of_its_words_is_read_or_not_supported(length_max: int) -> None:
    statements = [*MORE, *(seed.decode() for seed in ddl_text.seeds())]
    tried = 0
    for text in {
        each for said in statements if len(said) <= length_max or said in MORE for each in cut(said)
    }:
        ddl_text.run(text.encode())
        tried += 1
    assert tried > 500
