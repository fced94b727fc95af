"""What of a part can be written before the parts ahead of it are committed.

Invariant. `early` and `late` hold the changes of the part, each once and in their order, and no
change of `early` meets a row that a part ahead touches: neither by key, nor in a table whose rows
cannot be told apart by one key. So `early` can be executed beside the parts ahead, in any order,
with the same outcome, and `late` once they are committed.

A DELETE may read, and wait for, rows that it does not delete (a server takes the index that it
likes): with one in a table, on either side, that table is not shared either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set

from binlogd.drainer.rows.parts import Part
from binlogd.drainer.rows.plan import Key
from binlogd.drainer.rows.target import Target


def split(part: Part, ahead: Iterable[Part], bound: Set[bytes]) -> tuple[Part, Part]:
    """`early` and `late`, see the module; both are for their statements only. `bound` are tables
    (quoted names) of which two parts never write at once."""
    others = list(ahead)
    # a trigger may write to any table
    if any(target.shape.has_triggers for each in [part, *others] for target in each.runs):
        return Part(), part
    early, late = Part(), Part()
    for target, runs in part.runs.items():
        is_met = any(target.name == other.name for each in others for other in _targets(each))
        (late if is_met else early).runs[target] = runs
    for target, states in part.merged.items():
        met = _keys_met(target, states, others, bound)
        if met is None:
            late.merged[target] = states
        elif not met:
            early.merged[target] = states
        else:
            late.merged[target] = {key: states[key] for key in states if key in met}
            rest = {key: row for key, row in states.items() if key not in met}
            if rest:
                early.merged[target] = rest
        noted = part.before.get(target, [])
        for half in (early, late):
            half.before[target] = [key for key in noted if key in half.merged.get(target, ())]
    return early, late


def _keys_met(
    target: Target, own: Mapping[Key, bytes | None], ahead: Iterable[Part], bound: Set[bytes]
) -> set[Key] | None:
    """The keys that parts ahead touch as well; None: all of them, as far as one can tell."""
    met: set[Key] = set()
    keys = own.keys()
    is_shared = target.by_key and target.name not in bound and None not in own.values()
    for part in ahead:
        of_name = [each for each in _targets(part) if each.name == target.name]
        if not of_name:
            continue
        states = part.merged.get(target)
        if of_name != [target] or states is None or not is_shared or None in states.values():
            return None
        met |= keys & states.keys()
    return met


def _targets(part: Part) -> Iterator[Target]:
    yield from part.merged
    yield from part.runs
