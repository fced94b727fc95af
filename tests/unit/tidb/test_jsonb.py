"""JSON as TiDB stores it and as it is printed."""

from __future__ import annotations

import json

import pytest

from binlogd.errors import CorruptRow
from binlogd.tidb.jsonb import DEPTH_MAX, double_text, json_bytes, json_bytes_of, json_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (3.0, "3.0"),
        (0.0001, "0.0001"),
        (0.00001, "0.00001"),
        (0.000001, "0.000001"),
        (0.0000011, "0.0000011"),
        (1e-7, "1e-7"),
        (1.5e-300, "1.5e-300"),
        (1e16, "10000000000000000.0"),
        (1.2345678901234567e20, "123456789012345670000.0"),
        (1e21, "1e+21"),
        (-1.5e300, "-1.5e+300"),
        (5e-324, "5e-324"),
    ],
)
def test_doubles_are_printed_like_in_javascript_but_with_a_point(value: float, text: str) -> None:
    assert double_text(value) == text
    assert json_text(json_bytes_of(value)) == text
    assert json_bytes(text) == json_bytes_of(value)


def test_keys_are_sorted_by_their_bytes() -> None:
    assert json_text(json_bytes('{"é": 1, "b": 2, "aa": 3, "a": 4}')) == (
        '{"a": 4, "aa": 3, "b": 2, "é": 1}'
    )


def test_the_last_of_equal_keys_counts() -> None:
    assert json_text(json_bytes('{"a": 1, "a": 2}')) == '{"a": 2}'


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("9223372036854775807", "9223372036854775807"),
        ("9223372036854775808", "9223372036854775808"),
        ("18446744073709551616", "18446744073709552000.0"),
        ("-9223372036854775809", "-9223372036854776000.0"),
        ("1.0", "1.0"),
        ("1E2", "100.0"),
        ("-0", "0"),
    ],
)
def test_numbers_become_the_narrowest_type(text: str, printed: str) -> None:
    assert json_text(json_bytes(text)) == printed


def test_strings_are_escaped_as_go_does() -> None:
    text = '"quote \\" back \\\\ \\n\\r\\t \\u0001 \\u2028\\u2029 <&> \x7f ü 😀"'
    assert json_text(json_bytes(text)) == text


def test_a_byte_that_is_no_utf8_is_replaced() -> None:
    assert json_text(b"\x0c\x04a\xff\xed\x80") == '"a\\ufffd\\ufffd\\ufffd"'


def test_half_a_surrogate_pair_is_replaced() -> None:
    assert json_text(json_bytes('"\\ud800"')) == '"�"'


def test_a_hundred_levels_are_read_and_far_more_are_corrupt() -> None:
    deep = "[" * 100 + "]" * 100
    assert json_text(json_bytes(deep)) == deep
    too_deep = DEPTH_MAX + 1
    with pytest.raises(CorruptRow, match="deeper"):
        json_text(json_bytes("[" * too_deep + "]" * too_deep))


def array(*entries: bytes, size: int) -> bytes:
    head = len(entries).to_bytes(4, "little") + size.to_bytes(4, "little")
    return b"\x03" + head + b"".join(entries)


def test_elements_that_share_bytes_are_corrupt() -> None:
    entry = b"\x03" + (18).to_bytes(4, "little")
    inner = array(size=8)[1:]
    with pytest.raises(CorruptRow, match="overlap"):
        json_text(array(entry, entry, size=26) + inner)


def test_an_array_that_holds_itself_is_corrupt() -> None:
    with pytest.raises(CorruptRow, match="overlap"):
        json_text(array(b"\x03\x00\x00\x00\x00", size=13))


def test_a_value_outside_of_its_container_is_corrupt() -> None:
    entry = b"\x09" + (13).to_bytes(4, "little")
    with pytest.raises(CorruptRow, match="reaches out"):
        json_text(array(entry, size=13) + bytes(8))


def test_a_count_beyond_the_size_is_corrupt() -> None:
    with pytest.raises(CorruptRow, match="cannot hold"):
        json_text(b"\x03\xff\xff\xff\xff" + (8).to_bytes(4, "little"))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), b"bytes", {1, 2}])
def test_what_json_has_no_word_for_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="cannot hold"):
        json_bytes_of(value)


@pytest.mark.parametrize("text", ["", "{", "NaN", "[1,]", "'a'", "[" * 100_000])
def test_text_that_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        json_bytes(text)


def test_a_large_document_comes_back() -> None:
    document = {f"key{n}": [n, f"text {n}" * 20, {"inner": n / 8}] for n in range(500)}
    assert json.loads(json_text(json_bytes_of(document))) == document
