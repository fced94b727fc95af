"""A node as the registry keeps it: the original's JSON, to the byte.

Source: tidb-binlog pkg/node/node.go, Status. Go's decoder ignores fields that it does not know and
does without those that are missing, and so does this one.
"""

from __future__ import annotations

import msgspec

from binlogd.ports import NodeStatus
from binlogd.status import Label, NodeEntry

PUMP, DRAINER = "pumps", "drainers"
"""Kinds, named as in the keys."""
ROOT = "/tidb-binlog/v1"


class BadEntry(Exception):
    """The JSON is none, or has something of the wrong kind."""


def node_key(kind: str, node_id: str) -> bytes:
    """Where a node's entry stands; without an id, what all of a kind begin with."""
    return f"{ROOT}/{kind}/{node_id}".encode()


def span(prefix: bytes) -> tuple[bytes, bytes]:
    """All keys that begin so, as etcd asks for them; no prefix here ends with the last byte."""
    return prefix, prefix[:-1] + bytes([prefix[-1] + 1])


def entry(node: NodeStatus) -> NodeEntry:
    """What stands under a node's key, and what /status and the tools of the original show."""
    return NodeEntry(
        node_id=node.node_id,
        host=node.host,
        state=node.state,
        is_alive=node.is_alive is True,
        score=node.score,
        label=Label(node.labels) if node.labels is not None else None,
        max_commit_ts=node.max_commit_ts,
        update_ts=node.update_ts,
    )


def entry_json(node: NodeStatus) -> bytes:
    """`entry`, as it is stored."""
    return msgspec.json.encode(entry(node))


def node_of(kind: str, value: bytes) -> NodeStatus:
    """The node of an entry. Raises BadEntry."""
    try:
        found = msgspec.json.decode(value, type=NodeEntry)
    except (msgspec.MsgspecError, ValueError) as error:
        raise BadEntry(str(error)) from error
    return NodeStatus(
        kind=kind,
        node_id=found.node_id,
        host=found.host,
        state=found.state,
        max_commit_ts=found.max_commit_ts,
        update_ts=found.update_ts,
        score=found.score,
        is_alive=True if found.is_alive else None,
        labels=found.label.labels if found.label is not None else None,
    )
