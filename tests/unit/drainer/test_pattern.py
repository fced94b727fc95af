"""The regular expressions of a configuration: the syntax of Go, in a time that is linear."""

from __future__ import annotations

import pytest

from binlogd.drainer.filtering.event_filter import EventFilter, EventRule
from binlogd.drainer.filtering.filter import TableFilter
from binlogd.drainer.filtering.pattern import glob, regular
from binlogd.errors import ConfigError

NOT_UTF8 = b"caf\xe9".decode("utf-8", "surrogateescape")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("letter", ["a", "é", "\udce9"])
def test_no_pattern_takes_more_than_a_moment_of_a_long_ddl(letter: str) -> None:
    rule = EventRule("*", "*", (), ("^(a|[a-z ]+)+$Q", r"(.*)*(\pL+)*#", "^(?:.?){500}(?:.){500}#"))
    assert not EventFilter([rule]).ignores_ddl("shop", "t", letter * 5_000)


@pytest.mark.timeout(20)
def test_no_name_does_either() -> None:
    names = TableFilter(do_databases=["~^(a|a)*$", "(a|a)*b"])
    assert not names.replicates("a" * 64 + "c", "t")


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        ("^[[:alpha:]]+$", "Orders", True),
        ("^[[:alpha:]]+$", "orders_1", False),
        ("^[[:word:]]{3}$", "a_1", True),
        (r"^\pL+$", "été", True),
        (r"^\p{Greek}+$", "orders", False),
        (r"s\z", "orders", True),
        (r"s\z", "orders\n", False),
        ("s$", "orders\n", False),
        ("(?m)^b$", "a\nb\nc", True),
        ("a.b", "a\nb", False),
        ("(?s)a.b", "a\nb", True),
        ("(?P<first>o)r", "orders", True),
        ("(?i)ORDERS", "orders", True),
        ("(?-i)ORDERS", "orders", False),
        (r"\Qa.b\E", "axb", False),
        ("^a{,2}$", "aa", False),
        (r"^\d$", "٣", False),
        (r"^\w$", "é", False),
        ("", "anything", True),
    ],
)
def test_a_pattern_is_read_as_go_reads_it(pattern: str, text: str, *, found: bool) -> None:
    assert regular(pattern)(text) is found


@pytest.mark.parametrize(
    ("pattern", "name", "is_equal"),
    [
        ("k", "\N{KELVIN SIGN}", True),
        ("\N{LATIN SMALL LETTER LONG S}hop", "SHOP", True),
        ("ΟΔΟΣ", "οδος", True),
        ("É", "é", True),
        ("straße", "STRASSE", False),
        ("i", "İ", False),
    ],
)
def test_letters_that_go_folds_are_one(pattern: str, name: str, *, is_equal: bool) -> None:
    for written in (pattern, f"~^{pattern}$"):
        assert TableFilter(do_databases=[written]).replicates(name, "t") is is_equal
    assert glob(pattern, is_case_sensitive=False)(name) is is_equal
    assert not glob(pattern, is_case_sensitive=True)(name)


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("caf.$", True),
        ("caf[^a-z]$", True),
        ("caf..", False),
        ("café", False),
        (NOT_UTF8, True),
        (NOT_UTF8.replace("\udce9", "\udcea"), False),
    ],
)
def test_each_byte_that_is_no_utf_8_is_a_character(pattern: str, *, found: bool) -> None:
    assert regular(pattern)(NOT_UTF8) is found
    assert TableFilter(do_databases=[f"~{pattern}"]).replicates(NOT_UTF8, "t") is found
    rules = EventFilter([EventRule("caf?", "*", (), (pattern,))])
    assert rules.ignores_ddl(NOT_UTF8, NOT_UTF8, f"DROP TABLE {NOT_UTF8}") is found


def test_a_name_that_is_no_utf_8_is_compared_byte_by_byte() -> None:
    names = TableFilter(do_databases=[NOT_UTF8])
    assert names.replicates(NOT_UTF8.upper(), "t")
    assert not names.replicates(NOT_UTF8.replace("\udce9", "\udcea"), "t")


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(", r"missing \): \("),
        ("^(?!tmp)", r"invalid perl operator: \(\?!"),
        ("(?<=a)b", r"invalid perl operator: \(\?<"),
        (r"(a)\1", r"invalid escape sequence: \\1"),
        (r"a\Z", r"invalid escape sequence: \\Z"),
        ("a++", r"bad repetition operator: \+\+"),
        ("(?x) a", r"invalid perl operator: \(\?x"),
        ("a{1001}", r"invalid repetition size: \{1001\}"),
        (r"(\pL{100}\pN{100}){9}", "pattern too large"),
        ("(\udce9", r"missing \): \("),
    ],
)
def test_what_go_does_not_read_is_refused_in_its_words(
    pattern: str, why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match=f"^key: .* is no regular expression: {why}") as refused:
        regular(pattern, "key: ")
    assert "RE2" in refused.value.todo
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("a[^b]", "a^", True),
        ("a[^b]", "ac", False),
        ("a[[:x]", "a:", True),
        ("a[&&~~]", "a&", True),
        (r"a[\]", "a\\", True),
        (r"a[\-^]", "a]", True),
        ("a[!]", "a!", True),
        ("a.b+(*", "a.b+(c\nd", True),
        ("a.b+(*", "axb", False),
    ],
)
def test_what_means_something_to_an_expression_alone_is_itself_in_a_glob(
    pattern: str, name: str, *, matches: bool
) -> None:
    assert glob(pattern, is_case_sensitive=False)(name) is matches
