"""A node as the registry keeps it: the original's JSON, to the byte.

Source: tidb-binlog pkg/node/node.go, Status. Go's decoder ignores fields that it does not know and
does without those that are missing, and so does this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from binlogd.ports import NodeStatus
from binlogd.tso import Tso

PUMP, DRAINER = "pumps", "drainers"
"""Kinds, named as in the keys."""
ROOT = "/tidb-binlog/v1"


class BadEntry(Exception):
    """The JSON is none, or has something of the wrong kind."""


class _Label(msgspec.Struct):
    labels: Mapping[str, str] | None = None


class _Entry(
    msgspec.Struct,
    rename={
        "node_id": "nodeId",
        "is_alive": "isAlive",
        "max_commit_ts": "maxCommitTS",
        "update_ts": "updateTS",
    },
):
    node_id: str = ""
    host: str = ""
    state: str = ""
    is_alive: bool = False
    score: int = 0
    label: _Label | None = None
    max_commit_ts: int = 0
    update_ts: int = 0


def node_key(kind: str, node_id: str) -> bytes:
    """Where a node's entry stands; without an id, what all of a kind begin with."""
    return f"{ROOT}/{kind}/{node_id}".encode()


def entry_json(node: NodeStatus) -> bytes:
    """What stands under a node's key."""
    return msgspec.json.encode(
        _Entry(
            node_id=node.node_id,
            host=node.host,
            state=node.state,
            is_alive=node.is_alive is True,
            score=node.score,
            label=_Label(node.labels) if node.labels is not None else None,
            max_commit_ts=node.max_commit_ts,
            update_ts=node.update_ts,
        )
    )


def status_json(node: NodeStatus) -> Mapping[str, Any]:
    """A node as /status and the tools of the original show it."""
    shown: Mapping[str, Any] = msgspec.json.decode(entry_json(node))
    return shown


def node_of(kind: str, value: bytes) -> NodeStatus:
    """The node of an entry. Raises BadEntry."""
    try:
        entry = msgspec.json.decode(value, type=_Entry)
    except (msgspec.MsgspecError, ValueError) as error:
        raise BadEntry(str(error)) from error
    return NodeStatus(
        kind=kind,
        node_id=entry.node_id,
        host=entry.host,
        state=entry.state,
        max_commit_ts=Tso(entry.max_commit_ts),
        update_ts=Tso(entry.update_ts),
        score=entry.score,
        is_alive=True if entry.is_alive else None,
        labels=entry.label.labels if entry.label is not None else None,
    )
