"""What a process, or a part of it, holds: objects by type, and the containers that are long.

A cache that fills looks like a leak to whoever measures resident memory. Counts tell them apart:
a cache is a container with a name, and stays within its limit; a leak does not.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter, deque
from collections.abc import Iterator
from types import (
    FrameType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    ModuleType,
)
from typing import Any

LONG_MIN = 256
"""From so many entries on a container is named."""
CONTAINERS = (dict, list, set, deque)
_ELSEWHERE = (type, ModuleType, FunctionType, FrameType)
"""What they refer to is not theirs."""


def objects_below(*roots: object) -> int:
    """How many objects can be reached from these, without types, modules and functions."""
    seen: set[int] = set()
    ahead: list[Any] = list(roots)
    while ahead:
        each = ahead.pop()
        if id(each) not in seen and not isinstance(each, _ELSEWHERE):
            seen.add(id(each))
            ahead += gc.get_referents(each)
    return len(seen)


def objects_of_process() -> Counter[str]:
    """All that the collector knows of, by type, when it has collected; also what a program set
    aside at its start."""
    gc.unfreeze()
    gc.collect()
    return Counter(_name(each) for each in gc.get_objects())


def long_containers() -> Counter[str]:
    """Entries of containers that are an attribute, by `Type.attribute`, of all objects together;
    and the entries of caches of functions, by function. Those with few are left out."""
    found: Counter[str] = Counter()
    for each in gc.get_objects():
        if isinstance(each, ModuleType):
            continue
        for name, value in _attributes(each):
            if isinstance(value, CONTAINERS) and len(value) >= LONG_MIN:
                found[f"{_name(each)}.{name}"] += len(value)
    for name, entries in _of_modules():
        found[name] += entries
    return found


def _of_modules() -> Iterator[tuple[str, int]]:
    for module in list(sys.modules.values()):
        name = getattr(module, "__name__", "")
        if not str(name).startswith("binlogd"):
            continue
        for attribute, value in list(vars(module).items()):
            if isinstance(value, CONTAINERS):
                entries = len(value)
            elif hasattr(value, "cache_info"):
                entries = value.cache_info().currsize
            else:
                continue
            if entries >= LONG_MIN:
                yield f"{name}.{attribute}", entries


def _attributes(each: object) -> Iterator[tuple[str, object]]:
    if isinstance(each, type):
        return
    for kind in type(each).__mro__:
        if str(kind.__module__).startswith("binlogd"):  # with slots, or compiled
            for name, value in kind.__dict__.items():
                if isinstance(value, GetSetDescriptorType | MemberDescriptorType):
                    yield name, getattr(each, name, None)
    try:
        own = object.__getattribute__(each, "__dict__")  # some objects answer by an error of theirs
    except AttributeError:
        return
    if isinstance(own, dict):
        yield from list(own.items())


def _name(each: object) -> str:
    kind = type(each)
    return f"{kind.__module__}.{kind.__qualname__}"
