"""Which of InnoDB's names are a table's."""

from __future__ import annotations

import pytest

from binlogd.drainer.mysql.innodb_name import like, of_table


@pytest.mark.parametrize(
    ("found", "table", "partition", "numbers"),
    [
        (("s/t", "s/t1", "s/x"), "t", "", [0]),
        (("s/a@002db", "s/a_b"), "a-b", "", [0]),
        (("s/t#P#x", "s/t#P#y", "s/t#p#z", "s/t@0023P@0023x"), "t", "", [0, 1, 2]),
        (("s/t#P#x", "s/t#p#xy"), "t", "X", [0]),
        (("s/T", "s/t"), "t", "", [1]),
        (("s/t",), "T", "", [0]),
        (("s/@2n", "s/x"), "ç", "", [0]),
        (("s/@2n", "s/@2o"), "ç", "", []),
        (("s/@65e5", "s/@65e6"), "日", "", [0]),
    ],
)
def test_a_table_is_told_from_every_other(
    found: tuple[str, ...], table: str, partition: str, numbers: list[int]
) -> None:
    told = of_table([(name, at) for at, name in enumerate(found)], "s", table, partition)
    assert [each for _, each in told] == numbers


def test_the_pattern_names_no_letter_that_has_another_meaning() -> None:
    assert like("s_1", "a-b%") == r"s\_1/a@%b@%%"
