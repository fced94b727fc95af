"""`binlogd ctl`: the words of the original's binlogctl.

Source: tidb-binlog binlogctl/config.go, binlogctl/nodes.go.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.markup import escape

from binlogd import app, passwords
from binlogd.commands.nodes import show_nodes
from binlogd.commands.options import (
    AddrOption,
    ConfigOption,
    DataDirOption,
    JsonOption,
    load_asking,
)
from binlogd.commands.running import get_json, put
from binlogd.commands.savepoint import show_savepoint
from binlogd.errors import ConfigError, NotRunning
from binlogd.node.membership import mark
from binlogd.ports import NodeStatus, Registry
from binlogd.pump.state import NodeState
from binlogd.quantities import pd_addresses
from binlogd.setup import Setup
from binlogd.upstream.registry import DRAINER, PUMP

_LISTS = {"pumps": PUMP, "drainers": DRAINER}
_MARKS = {"update-pump": PUMP, "update-drainer": DRAINER}
_ACTIONS = {"pause": "pause", "close": "close", "offline": "close", "resume": "resume"}
_WORDS = (
    "pumps, drainers, update-pump, update-drainer, pause-pump, pause-drainer, offline-pump,"
    " offline-drainer, resume-drainer, pause, close, offline, resume, generate_meta, encrypt"
)
_DONE = 200


def ctl(  # noqa: PLR0913 - typer makes each parameter an option
    word: Annotated[str, typer.Argument(help=_WORDS)] = "",
    cmd: Annotated[str, typer.Option("--cmd", "-cmd", help="The word, as binlogctl has it.")] = "",
    node_id: Annotated[
        str, typer.Option("--node-id", "-node-id", help="Whose state to change.")
    ] = "",
    state: Annotated[
        str, typer.Option("--state", "-state", help="Of update-*: online, pausing, ... .")
    ] = "",
    show_offline: Annotated[
        bool,
        typer.Option("--show-offline-nodes", "-show-offline-nodes", help="List them as well."),
    ] = False,
    pd_urls: Annotated[
        str,
        typer.Option(
            "--pd-urls",
            "-pd-urls",
            help="Whose registry: PDs, or binlogds that stand in for one; with commas.",
        ),
    ] = "",
    time_zone: Annotated[
        str,
        typer.Option("--time-zone", "-time-zone", help="Of generate_meta: such as Asia/Shanghai."),
    ] = "",
    text: Annotated[
        str,
        typer.Option("--text", "-text", help="What to encrypt; better from standard input."),
    ] = "",
    config_file: ConfigOption = None,
    data_dir: DataDirOption = None,
    addr: AddrOption = None,
    as_json: JsonOption = False,
) -> None:
    """Do what the original's binlogctl does, in its words.

    pumps and drainers list the registry, update-* corrects what it says of a node that is dead
    (`binlogd nodes --mark`), pause-*, offline-* and resume-drainer ask a running node
    (`binlogd state`), generate_meta writes the time of PD as the savepoint of a new Drainer into
    --data-dir (binlog_position), encrypt makes an `encrypted_password` of what it reads from
    standard input. With --pd-urls all that is done in the registry of another cluster's PD, or of
    another binlogd; its certificates are those of [security]. Unlike binlogctl it says so, with
    exit code 1, when a node refuses.
    """
    word = word or cmd or "pumps"
    if word == "encrypt":
        _encrypt(text, as_json=as_json)
        return
    if word == "generate_meta":
        setup = _asking_pd(load_asking(config_file, addr), pd_urls)
        show_savepoint(setup, Path(data_dir or "binlog_position"), time_zone, as_json=as_json)
        return
    setup = load_asking(config_file, addr, data_dir)
    if pd_urls:
        setup = _asking_pd(setup, pd_urls)
    if word in _LISTS:
        _list(setup, _LISTS[word], shows_offline=show_offline, as_json=as_json)
        return
    action, _, kind = word.partition("-")
    if word not in _MARKS and (action not in _ACTIONS or kind not in ("", "pump", "drainer")):
        raise ConfigError(f"cmd {word} not supported; known: {_WORDS}")
    if not node_id:
        raise ConfigError(
            f"{word} needs --node-id; `binlogd ctl pumps` and `ctl drainers` list them"
        )
    if word in _MARKS:
        _mark(setup, node_id, state, _MARKS[word], as_json=as_json)
    else:
        _ask(setup, node_id, _ACTIONS[action], as_json=as_json)


def _list(setup: Setup, kind: str, *, shows_offline: bool, as_json: bool) -> None:
    async def nodes(registry: Registry) -> list[NodeStatus]:
        return list(await registry.nodes(kind))

    found = [
        each
        for each in app.with_registry(setup, nodes)
        if shows_offline or each.state != NodeState.OFFLINE.value
    ]
    show_nodes(found, as_json=as_json)


def _asking_pd(setup: Setup, pd_urls: str) -> Setup:
    """The same for the registry of a PD; without `pd_urls` the PD of the configuration."""
    upstream = setup.config.upstream
    if pd_urls:
        pd_addresses(pd_urls)  # what is wrong in it is said here
        upstream = msgspec.structs.replace(upstream, kind="pd", pd_urls=pd_urls)
    elif upstream.kind != "pd":
        raise ConfigError(
            "generate_meta needs --pd-urls: a PD, or a binlogd that stands in for one"
        )
    return Setup(msgspec.structs.replace(setup.config, upstream=upstream), setup.directory)


def _mark(setup: Setup, node_id: str, state: str, kind: str, *, as_json: bool) -> None:
    async def act(registry: Registry) -> list[NodeStatus]:
        return list(await mark(registry, node_id, state, [kind]))

    show_nodes(app.with_registry(setup, act), as_json=as_json)


def _ask(setup: Setup, node_id: str, action: str, *, as_json: bool) -> None:
    """This machine's node is asked where it listens, another one at the address it registered."""
    is_elsewhere = setup.config.upstream.kind == "pd"
    reached = _registered(setup, node_id) if is_elsewhere else _reached(setup, node_id)
    answer = put(reached, f"/state/{node_id}/{action}")
    if as_json:
        sys.stdout.write(json.dumps(answer) + "\n")
    else:
        Console().print(escape(str(answer["message"])), highlight=False, soft_wrap=True)
    if answer["code"] != _DONE:
        raise typer.Exit(1)


def _registered(setup: Setup, node_id: str) -> Setup:
    """Where the registry says that a node is."""

    async def find(registry: Registry) -> list[NodeStatus]:
        found = [await registry.node(kind, node_id) for kind in (PUMP, DRAINER)]
        return [node for node in found if node is not None]

    for node in app.with_registry(setup, find):
        config = msgspec.structs.replace(setup.config, addr=node.host, binlog_socket="")
        return Setup(config, setup.directory)
    raise NotRunning(node_id, "it is not in the registry; `binlogd ctl pumps` lists who is")


def _reached(setup: Setup, node_id: str) -> Setup:
    status: dict[str, Any] = get_json(setup, "/status")
    if node_id in (status["node_id"], status["drainer"]["node_id"]):
        return setup
    for each in (*get_json(setup, "/pumps"), *(get_json(setup, "/drainers") or ())):
        if each["nodeId"] == node_id:
            config = msgspec.structs.replace(setup.config, addr=each["host"], binlog_socket="")
            return Setup(config, setup.directory)
    raise NotRunning(node_id, "it is not in the registry; `binlogd ctl pumps` lists who is")


def _encrypt(text: str, *, as_json: bool) -> None:
    key = os.environ.get(passwords.KEY_VARIABLE, "")
    errors = Console(stderr=True)
    if text:
        errors.print("[yellow]others on this machine may see --text; use standard input[/]")
    else:
        is_asked = sys.stdin.isatty()
        text = typer.prompt("password", hide_input=True) if is_asked else sys.stdin.readline()
        text = text.rstrip("\r\n")
    if not text:
        raise ConfigError("need to specify the text to be encrypt")
    if passwords.is_key_of_all(key):
        errors.print(
            f"[yellow]the key is the one that everybody knows; set {passwords.KEY_VARIABLE} to"
            " 32 bytes as hexadecimal digits, here and where binlogd runs[/]",
            soft_wrap=True,
        )
    hidden = passwords.encrypt(text, key, os.getrandom)
    sys.stdout.write((json.dumps({"encrypted": hidden}) if as_json else hidden) + "\n")
