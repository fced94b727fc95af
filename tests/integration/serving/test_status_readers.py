"""What the page's scripts read of a status is what a status has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

import binlogd.serving
from binlogd.node.problems import Problem
from binlogd.status import PARTLY, DrainerStatus, Status, document
from binlogd.upstream.store import SkipEntry
from tests.support.statuses import well

PAGE = Path(binlogd.serving.__file__).parent / "page"
_OF_STATUS = re.compile(r"\b(status|drainer|checkpoint|ddl)\.(\w+)")
_TAKEN_APART = re.compile(r"\{([^{}]*)\} = (?:status\.)?(status|drainer|checkpoint|ddl)\b")
_OF_EACH = re.compile(r"\b(?:each|shard)\.(\w+)")
_NAME = re.compile(r"^(\w+)")
_OF_ELEMENTS = {"map", "filter", "name", "title", "length", "commit_ts"}
"""What is asked of arrays and of elements of the page too."""


def kinds(of: Any) -> Iterator[type[msgspec.Struct]]:
    """The classes that one is made of, and it itself."""
    if isinstance(of, type) and issubclass(of, msgspec.Struct):
        yield of
        for hint in get_type_hints(of).values():
            yield from kinds(hint)
    for each in get_args(of):
        yield from kinds(each)


def fields(kind: type[msgspec.Struct]) -> set[str]:
    return set(kind.__struct_encode_fields__)


HELD = {kind.__name__: kind for kind in kinds(Status)}
READ_AS = {
    "status": fields(Status),
    "drainer": fields(DrainerStatus),
    "checkpoint": fields(HELD["SavedCheckpoint"]),
    "ddl": fields(HELD["DdlAtWork"]),
}


@pytest.mark.parametrize("script", ["page.js", "acting.js"])
def test_the_page_reads_no_key_that_a_status_has_not(script: str) -> None:
    text = (PAGE / script).read_text()
    read = _OF_STATUS.findall(text)
    for keys, of in _TAKEN_APART.findall(text):
        read += [(of, name[0]) for key in keys.split(",") if (name := _NAME.findall(key.strip()))]
    assert [(of, key) for of, key in read if key not in READ_AS[of]] == []
    assert read


def test_what_the_page_reads_of_each_is_a_key_of_something_that_is_sent() -> None:
    known = {name for kind in HELD.values() for name in fields(kind)}
    known |= fields(Problem) | {"decided_ms", "reason"}
    assert "decided_ms" in fields(SkipEntry)
    for script in ("page.js", "acting.js"):
        read = set(_OF_EACH.findall((PAGE / script).read_text())) - _OF_ELEMENTS
        assert read - known == set(), script


def test_a_drainer_that_is_off_has_five_keys_and_is_read_as_one_with_all() -> None:
    off = document(well(drainer=DrainerStatus()))
    assert tuple(off["drainer"]) == PARTLY["DrainerStatus"]
    again = msgspec.convert(off, Status)
    assert (again.drainer.state, again.drainer.sources) == ("off", ())
    running = document(well())
    assert set(running["drainer"]) == fields(DrainerStatus)
    assert running["drainer"]["trash"] == {}, "there is no trash"


def test_the_keys_of_a_status_are_sent_in_their_order() -> None:
    """Programs in Go read some, and people the beginning."""
    sent = " ".join(document(well()))
    assert sent == (
        "state node_id roles cluster_id version form uptime_s max_commit_ts newest_commit_ts"
        " checkpoint lag_s drainer upstream open_addr archive exports stuck_parts registry_error"
        " log_error"
        " blocked_by blocked_s refuses_because late_commits first_late refused_from_the_future"
        " shards gc free_bytes capacity_bytes score close_waits_for"
        " PumpPos Synced LastTS TsMap status CommitTS Checkpoint ErrMsg"
    )
