"""Every error says what to do next, whoever makes another one."""

from __future__ import annotations

import pkgutil
import re
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from typing import TypeVar

import pytest

import binlogd
from binlogd import errors
from binlogd.drainer.mysql.connection import SqlRefused
from binlogd.errors import (
    BinlogdError,
    ConfigError,
    Corrupt,
    DiskFull,
    MissingDdlJob,
    RowMismatch,
    StatementRejected,
    Stuck,
    UnknownTable,
    UnsupportedDdl,
)

Family = TypeVar("Family", bound=Exception)
_DRAWN = re.compile(r"^    ([ │├└─]*)(\w+) ", re.MULTILINE)


def below(kind: type[Family]) -> Iterator[type[Family]]:
    for child in kind.__subclasses__():
        yield child
        yield from below(child)


def _import_all() -> None:
    for module in pkgutil.walk_packages(binlogd.__path__, "binlogd."):
        if module.name != "binlogd.__main__" and ".generated" not in module.name:
            import_module(module.name)


def drawn() -> dict[str, str]:
    """The parent of each class, in the picture at the head of the module."""
    found: dict[str, str] = {}
    above: list[str] = []
    for lead, name in _DRAWN.findall(errors.__doc__ or ""):
        depth = len(lead) // 4
        above[depth:] = [name]
        if depth:
            found[name] = above[depth - 1]
    return found


def public_parent(kind: type[BinlogdError]) -> str:
    (parent,) = kind.__bases__
    return public_parent(parent) if parent.__name__.startswith("_") else parent.__name__


def test_the_tree_that_is_drawn_is_the_tree() -> None:
    own = [each for each in below(BinlogdError) if each.__module__ == errors.__name__]
    are = {each.__name__: public_parent(each) for each in own if not each.__name__.startswith("_")}
    assert drawn() == are


def test_every_error_of_the_program_has_a_family_that_says_what_to_do() -> None:
    _import_all()
    assert {each.__name__ for each in BinlogdError.__subclasses__()} == {
        name for name, parent in drawn().items() if parent == "BinlogdError"
    }, "an error of another module is the child of a family"
    for each in below(BinlogdError):
        assert len(each.todo.split()) > 3, f"{each.__name__} does not say what to do"
        assert "skip" not in each.todo, f"{each.__name__}: a skip is nobody's first advice"


def test_no_two_errors_of_the_program_have_one_name() -> None:
    _import_all()
    own = {each for each in below(Exception) if each.__module__.startswith("binlogd.")}
    names = Counter(each.__name__ for each in own)
    assert [name for name, count in names.items() if count > 1] == []


def test_an_error_that_does_not_say_what_to_do_cannot_be_made() -> None:
    with pytest.raises(TypeError, match="does not say what to do next"):
        type("Forgotten", (BinlogdError,), {})
    with pytest.raises(TypeError, match="todo"):
        Stuck("what happened")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "error",
    [
        UnknownTable(77, 5, 2),
        RowMismatch("a.b", 5, "it is short"),
        MissingDdlJob(9, 5, "CREATE TABLE"),
        UnsupportedDdl(5, "FLASHBACK", "no"),
        StatementRejected(5, "INSERT", 1062, "duplicate"),
        SqlRefused(1062, "duplicate").of_rows(5, "INSERT"),
        SqlRefused(1142, "denied").of_ddl(5, "DROP TABLE"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_a_skip_gets_past_says_so_behind_what_mends_it(error: Stuck) -> None:
    text = str(error)
    assert error.skip_ts == 5
    assert text.startswith(f"{error.message}; {error.todo}; to pass over this transaction, ")
    assert "binlogd skip 5 " in text
    assert "skip" not in error.message + error.todo


def test_what_to_do_is_that_of_the_family_where_nothing_closer_is_known() -> None:
    assert Corrupt("torn").todo == Corrupt.todo
    assert str(Corrupt("torn")) == "torn"
    closer = ConfigError("addr: is wrong", todo="write host:port")
    assert (closer.message, closer.todo) == ("addr: is wrong", "write host:port")
    assert str(closer) == "addr: is wrong; write host:port"


def test_a_disk_that_has_bytes_and_refuses_is_said_to_have_too_few_of_them_or_of_inodes() -> None:
    assert "too few? if not, look for inodes" in str(DiskFull(2 << 20, 0))
    assert "too few" not in str(DiskFull(2 << 20, 4 << 20))
