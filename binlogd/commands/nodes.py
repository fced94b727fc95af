"""`binlogd nodes`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Column

from binlogd import offline_commands
from binlogd.commands.options import ConfigOption, DataDirOption, JsonOption, load_setup
from binlogd.commands.output import say, say_json, say_table
from binlogd.errors import ConfigError
from binlogd.node.membership import mark as mark_node
from binlogd.ports import NodeStatus, Registry
from binlogd.settings.quantities import wall_clock_ms
from binlogd.tso import physical_ms
from binlogd.upstream.entry import DRAINER, PUMP, entry


def nodes(
    node_id: Annotated[str, typer.Argument(help="With --mark: whose entry to change.")] = "",
    mark: Annotated[
        str, typer.Option("--mark", help="online, pausing, paused, closing or offline.")
    ] = "",
    config_file: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the Pumps and Drainers in the registry, or correct the entry of a dead one.

    Other nodes wait for a dead Drainer. A new Pump does not start while it cannot notify that
    Drainer: use --mark paused. A Pump does not go offline until that Drainer has read everything:
    use --mark offline if it will never come back. The node itself is not told, and a living node
    corrects its entry with the next heartbeat. A node of binlogd renews a claim to be alive, which
    ends ten seconds after it dies; nodes of TiDB Binlog do not.

        binlogd nodes
        binlogd nodes pump-3 --mark offline
    """
    if bool(node_id) != bool(mark):
        raise ConfigError("a node id and --mark go together; without both, all nodes are listed")

    async def act(registry: Registry) -> list[NodeStatus]:
        known = [node for kind in (PUMP, DRAINER) for node in await registry.nodes(kind)]
        if not node_id:
            return known
        names = [each.node_id for each in known]
        if node_id not in names:
            there = ", ".join(names) or "nobody"
            raise ConfigError(f"{node_id} is not in the registry; registered: {there}")
        return list(await mark_node(registry, node_id, mark))

    found = offline_commands.with_registry(load_setup(config_file, data_dir), act)
    show_nodes(found, as_json=as_json)


def show_nodes(found: Sequence[NodeStatus], *, as_json: bool) -> None:
    """Entries of the registry, as a table or for machines."""
    if as_json:
        say_json(
            {kind: [entry(each) for each in found if each.kind == kind] for kind in (PUMP, DRAINER)}
        )
        return
    if not found:
        say("nobody is registered")
        return
    names = ("kind", "node id", "address", "state", "alive", "up to", "last heard of")
    whole = {"node id", "address"}  # to be pasted
    columns = [Column(each, overflow="fold", no_wrap=each in whole) for each in names]
    say_table(columns, map(_row, found))


def _row(node: NodeStatus) -> tuple[str, ...]:
    heard = wall_clock_ms(physical_ms(node.update_ts))
    alive = {True: "yes", False: "no", None: "?"}[node.is_alive]
    named = map(escape, (node.node_id, node.host, node.state))
    return node.kind.removesuffix("s"), *named, alive, str(node.max_commit_ts), heard
