"""What is wrong with the keys of a configuration: all of it at once, each with its line.

A key that is unknown is named with the nearest one, a value of another type with what would be
right. Pure; what keys mean together is checked where the configuration is made (config.py).
"""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Any, Literal, get_args, get_origin

import msgspec

from binlogd.settings.quantities import ClusterId, CommitTs, Seconds, Size, kinds_of

SECRETS = frozenset(
    {
        "password",
        "encrypted_password",
        "admin_token",
        "ssl_key_password",
        "schema_registry_password",
    }
)
"""Fields whose values are never shown."""
_HEADER = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]")
_KEY = re.compile(r"\s*([\w.\"-]+)\s*=")
_SHOWN_CHARS_MAX = 60
_WORDS: dict[object, str] = {
    int: "must be a whole number, as in 4",
    float: "must be a number, as in 0.5",
    bool: "must be true or false",
    str: 'must be text in quotes, as in "name"',
    Size: 'must be a number of bytes, or text as in "64 MiB"',
    Seconds: 'must be a number of seconds, or text as in "90s" or "1h30m"',
    ClusterId: "must be a whole number, 0 or more",
}


def mistakes(tree: Mapping[str, Any], table: type[msgspec.Struct], text: str = "") -> list[str]:
    """A sentence for each wrong key of what was read, `line N: key: what is right`.

    `text` is where it was read from, for the lines; without it there are none.
    """
    lines = _lines(text)
    found = []
    for path, key, what in _of_table(tree, table, "", ""):
        line = lines.get(path) or lines.get(f"{path.rpartition('.')[0].partition('[')[0]} holds")
        found.append(f"line {line}: {key}: {what}" if line else f"{key}: {what}")
    return found


def _of_table(
    tree: Mapping[str, Any], table: type[msgspec.Struct], path: str, prefix: str
) -> Iterator[tuple[str, str, str]]:
    """Where a wrong key stands, what it is called, and what is right."""
    known = kinds_of(table)
    for name, value in tree.items():
        place, key = path + name, prefix + name
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {prefix}{near[0]}?" if near else f"known: {', '.join(known)}"
            yield place, key, f"unknown key; {hint}"
            continue
        child = _struct_in(known[name])
        if child is None or value is None:  # of a configuration that was read before
            if what := _wrong(name, value, known[name]):
                yield place, key, what
        else:
            yield from _of_children(value, known[name], child, place, key)
    for field in msgspec.structs.fields(table):
        if field.required and field.encode_name not in tree:
            yield f"{path}.", prefix + field.encode_name, "is missing"


def _of_children(
    value: Any, kind: Any, child: type[msgspec.Struct], place: str, key: str
) -> Iterator[tuple[str, str, str]]:
    """Of the tables that a key holds: one, a list of them, or some by name."""
    origin = get_origin(kind)
    if origin is tuple and isinstance(value, list | tuple):
        for number, each in enumerate(value):
            yield from _of_children(each, child, child, f"{place}[{number}]", key)
    elif origin is tuple or not isinstance(value, dict):
        written = f"[[{key}]]" if origin is tuple else f"[{key}]"
        yield place, key, f"must be a table, which begins with {written}"
    elif origin is dict:
        for name, each in value.items():
            yield from _of_children(each, child, child, f"{place}.{name}", f"{key}.{name}")
    else:
        yield from _of_table(value, child, f"{place}.", f"{key}.")


def _struct_in(kind: Any) -> type[msgspec.Struct] | None:
    return next(
        (
            each
            for each in (kind, *get_args(kind))
            if isinstance(each, type) and issubclass(each, msgspec.Struct)
        ),
        None,
    )


def _wrong(name: str, value: Any, kind: Any) -> str:
    """What is wrong with a value; nothing where it is right."""
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        shown = "***" if name.replace("-", "_") in SECRETS else json.dumps(value, default=str)
        return f"{right_form(kind)}; it is {shown[:_SHOWN_CHARS_MAX]}"
    return ""


def right_form(kind: Any) -> str:
    """What a value of this type must be, in words."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return f"must be one of {', '.join(json.dumps(each) for each in parts)}"
    if origin is tuple:
        if get_origin(parts[0]) is Literal:
            return f"must be a list out of {', '.join(map(json.dumps, get_args(parts[0])))}"
        each = {CommitTs: "[412518831548007863], of commit_ts", str: '["a", "b"]'}
        return "must be a list, as in " + each.get(parts[0], "[…]")
    if origin is dict:
        return 'must be a table, as in {name = "value"}'
    if origin is UnionType:
        return " or ".join(right_form(each) for each in parts)
    return _WORDS.get(kind, "has another form")


def _lines(text: str) -> dict[str, int]:
    """Line of each key by its path, `syncer.ignore-table[0].db-name`, and of what may hold others
    in one line: under the header of a table there are lines of their own, or they are from
    elsewhere."""
    found: dict[str, int] = {}
    lists: Counter[str] = Counter()
    prefix = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            brackets, name = header.groups()
            name = _plain(name)
            found.setdefault(name, number)
            if brackets == "[[":
                found.setdefault(f"{name} holds", number)
                prefix = f"{name}[{lists[name]}]."
                lists[name] += 1
            else:
                prefix = f"{name}."
        elif key := _KEY.match(line):
            found.setdefault(prefix + _plain(key[1]), number)
            found.setdefault(f"{prefix}{_plain(key[1])} holds", number)
    return found


def _plain(key: str) -> str:
    return key.replace('"', "").replace("_", "-").replace(" ", "")
