"""What `binlogctl` writes: lines of PingCAP's unified log format on the standard output.

Scripts that were written for it look for these words, `query node` and the text of a node above
all.

Source: tidb-binlog binlogctl/main.go, nodes.go, meta.go, encrypt.go; pkg/node/node.go, String;
pingcap/tidb rfcs 2018-12-19-unified-log-format.md.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import typer

from binlogd.errors import BinlogdError
from binlogd.host.clock import WallClock
from binlogd.ports import NodeStatus
from binlogd.tso import Tso, physical_ms

_NODE_TYPES = {"pumps": "pump", "drainers": "drainer"}
_QUOTED = frozenset(' "=[]\\')


class LogLines:
    """The answers to one command. Nothing is said of a change in the registry, as there."""

    def listed(self, found: Sequence[NodeStatus]) -> None:
        """One line a node."""
        for each in found:
            say("INFO", "query node", type=_NODE_TYPES[each.kind], node=node_text(each))

    def marked(self, found: Sequence[NodeStatus]) -> None:
        """Silence is success."""

    def acted(self, node_id: str, action: str, answer: Mapping[str, Any], *, is_done: bool) -> None:
        """A refusal is a failure here; binlogctl does not read the answer."""
        if is_done:
            say("INFO", "Apply action on node success", action=action, NodeID=node_id)
        else:
            say("FATAL", "fail to execute command", command=action, error=str(answer["message"]))

    def saved(self, ts: Tso, path: Path) -> None:
        """Where a new Drainer is to begin."""
        say("INFO", "save meta", meta=f"commitTS: {ts}", file=str(path))

    def encrypted(self, hidden: str) -> None:
        """For `encrypted_password`."""
        say("INFO", "encrypt text", encrypted=hidden)

    @contextmanager
    def failures(self, word: str) -> Iterator[None]:
        """An error of its block is a line and the exit code 1."""
        try:
            yield
        except BinlogdError as error:
            say("FATAL", "fail to execute command", command=word, error=str(error))
            raise typer.Exit(1) from error


def say(level: str, message: str, **facts: str) -> None:
    """One line of the log, of now."""
    now_ms = WallClock().wall_ms()
    now = datetime.fromtimestamp(now_ms // 1000).astimezone()
    stamp = f"{now:%Y/%m/%d %H:%M:%S}.{now_ms % 1000:03d} {_zone(now)}"
    shown = "".join(f" [{name}={_value(value)}]" for name, value in facts.items())
    sys.stdout.write(f"[{stamp}] [{level}] [<unknown>] [{_value(message)}]{shown}\n")


def node_text(node: NodeStatus) -> str:
    """A node as Go prints it; its time is in the zone of this machine, to the second."""
    heard = datetime.fromtimestamp(physical_ms(node.update_ts) // 1000).astimezone()
    return (
        f"{{NodeID: {node.node_id}, Addr: {node.host}, State: {node.state},"
        f" MaxCommitTS: {node.max_commit_ts}, UpdateTime: {heard:%Y-%m-%d %H:%M:%S %z %Z}}}"
    )


def _zone(moment: datetime) -> str:
    offset = f"{moment:%z}"
    return f"{offset[:3]}:{offset[3:5]}"


def _value(text: str) -> str:
    is_plain = text.isprintable() and not _QUOTED & set(text) and text
    return text if is_plain else json.dumps(text, ensure_ascii=False)
