"""`binlogd ctl`: the words of the original's binlogctl.

It answers in the manner in which it is asked. By a word (`binlogd ctl pumps`) it is a command of
binlogd: tables, errors beside them, 2 for what is asked wrongly. By options alone (`-cmd pumps`),
as binlogctl is, it writes binlogctl's lines and has its exit codes, so that scripts go on.

Source: tidb-binlog binlogctl/config.go, binlogctl/nodes.go.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
import typer

from binlogd import __version__, offline_commands
from binlogd.commands.as_binlogctl import LogLines
from binlogd.commands.nodes import show_nodes
from binlogd.commands.options import AddrOption, ConfigOption, JsonOption, load_asking
from binlogd.commands.output import say, warn
from binlogd.commands.running import get_json, get_status, put
from binlogd.commands.savepoint import save
from binlogd.errors import ConfigError
from binlogd.node.membership import mark, not_registered
from binlogd.ports import NodeStatus, Registry
from binlogd.pump.state import NodeState
from binlogd.settings import passwords
from binlogd.settings.config import advertised
from binlogd.settings.quantities import pd_addresses
from binlogd.settings.setup import Setup
from binlogd.status import NodeEntry
from binlogd.tso import Tso
from binlogd.upstream.registry import DRAINER, PUMP

_LISTS = {"pumps": PUMP, "drainers": DRAINER}
_MARKS = {"update-pump": PUMP, "update-drainer": DRAINER}
_ACTIONS = {"pause": "pause", "close": "close", "offline": "close", "resume": "resume"}
_WORDS = (
    "pumps, drainers, update-pump, update-drainer, pause-pump, pause-drainer, offline-pump,"
    " offline-drainer, resume-drainer, pause, close, offline, resume, generate_meta, encrypt"
)
_HALVES = {"": (PUMP, DRAINER), "pump": (PUMP,), "drainer": (DRAINER,)}
_DONE = 200
_OVERRIDES = "Overrides that of [security]."


_Word = Annotated[str, typer.Argument(help=_WORDS)]
_Cmd = Annotated[str, typer.Option("--cmd", "-cmd", help="The word, as binlogctl has it.")]
_NodeId = Annotated[str, typer.Option("--node-id", "-node-id", help="Whose state to change.")]
_State = Annotated[
    str,
    typer.Option(
        "--state", "-state", help="What update-* writes: online, pausing, paused, closing, offline."
    ),
]
_ShowOffline = Annotated[
    bool,
    typer.Option(
        "--show-offline-nodes", "-show-offline-nodes", help="List nodes that are offline, too."
    ),
]
_PdUrls = Annotated[
    str,
    typer.Option(
        "--pd-urls",
        "-pd-urls",
        help="Whose registry: PDs, or binlogds that stand in for one; with commas.",
    ),
]
_TimeZone = Annotated[
    str,
    typer.Option(
        "--time-zone", "-time-zone", help="In which generate_meta shows the time: Asia/Shanghai."
    ),
]
_Text = Annotated[
    str, typer.Option("--text", "-text", help="What to encrypt; better from standard input.")
]
_Ca = Annotated[str, typer.Option("--ssl-ca", "-ssl-ca", help=_OVERRIDES)]
_Cert = Annotated[str, typer.Option("--ssl-cert", "-ssl-cert", help=_OVERRIDES)]
_Key = Annotated[str, typer.Option("--ssl-key", "-ssl-key", help=_OVERRIDES)]
_Version = Annotated[bool, typer.Option("-V", help="Show the version and exit.")]
_DataDir = Annotated[
    str | None,
    typer.Option(
        "--data-dir",
        "-data-dir",
        help="Overrides data-dir of the configuration; generate_meta writes there.",
    ),
]


def ctl(  # noqa: PLR0913 - typer makes each parameter an option
    word: _Word = "",
    cmd: _Cmd = "",
    node_id: _NodeId = "",
    state: _State = "",
    show_offline: _ShowOffline = False,
    pd_urls: _PdUrls = "",
    time_zone: _TimeZone = "",
    text: _Text = "",
    ssl_ca: _Ca = "",
    ssl_cert: _Cert = "",
    ssl_key: _Key = "",
    shows_version: _Version = False,
    config_file: ConfigOption = None,
    data_dir: _DataDir = None,
    addr: AddrOption = None,
    as_json: JsonOption = False,
) -> None:
    """Do what binlogctl of TiDB Binlog does, with the same commands.

    pumps and drainers list the registry, update-* corrects what it says of a node that is dead
    (`binlogd nodes --mark`), pause-*, offline-* and resume-drainer ask a running node
    (`binlogd state`), generate_meta writes the time of PD as the savepoint of a new Drainer into
    --data-dir (binlog_position), encrypt makes an `encrypted_password` of what it reads from
    standard input. With --pd-urls all that is done in the registry of another cluster's PD, or of
    another binlogd; certificates are those of [security], or --ssl-ca, --ssl-cert and --ssl-key.

    Asked by options alone, `binlogd ctl -cmd pumps -pd-urls ...`, it answers as binlogctl does,
    with its log lines and exit codes: `alias binlogctl='binlogd ctl'`. Unlike binlogctl it says
    so, with exit code 1, when a node refuses.

        binlogd ctl pumps --pd-urls http://10.0.0.1:2379
    """
    if shows_version:
        say(f"binlogd {__version__}")
        return
    manner: _Manner = _Tables(as_json=as_json) if word or as_json else LogLines()
    word = word or cmd or "pumps"
    certificates = {"ssl_ca": ssl_ca, "ssl_cert": ssl_cert, "ssl_key": ssl_key}
    is_meta = word == "generate_meta"
    setup = load_asking(config_file, addr, None if is_meta else data_dir)
    setup = _secured(_asking_pd(setup, pd_urls) if pd_urls else setup, certificates)
    with manner.failures(word):
        if word == "encrypt":
            _encrypt(text, manner)
        elif is_meta:
            _save(setup, Path(data_dir or "binlog_position"), time_zone, manner)
        elif word in _LISTS:
            _list(setup, _LISTS[word], manner, shows_offline=show_offline)
        else:
            _change(setup, word, node_id, state, manner)


def _change(setup: Setup, word: str, node_id: str, state: str, manner: _Manner) -> None:
    action, _, half = word.partition("-")
    kind = _HALVES.get(half)
    if word not in _MARKS and (action not in _ACTIONS or kind is None):
        raise ConfigError(f"cmd {word} not supported; known: {_WORDS}")
    if not node_id:
        raise ConfigError(
            f"{word} needs --node-id; `binlogd ctl pumps` and `ctl drainers` list them"
        )
    if word in _MARKS:
        _mark(setup, node_id, state, _MARKS[word], manner)
    else:
        _ask(setup, node_id, _ACTIONS[action], kind or (), manner)


class _Tables:
    """As the other commands of binlogd."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json

    def listed(self, found: Sequence[NodeStatus]) -> None:
        show_nodes(found, as_json=self._as_json)

    def marked(self, found: Sequence[NodeStatus]) -> None:
        show_nodes(found, as_json=self._as_json)

    def acted(self, node_id: str, action: str, answer: Mapping[str, Any], *, is_done: bool) -> None:
        self._say(answer, str(answer["message"]))

    def saved(self, ts: Tso, path: Path) -> None:
        self._say({"commitTS": ts, "file": str(path)}, f"save meta: commitTS: {ts}, in {path}")

    def encrypted(self, hidden: str) -> None:
        sys.stdout.write((json.dumps({"encrypted": hidden}) if self._as_json else hidden) + "\n")

    def failures(self, word: str) -> AbstractContextManager[None]:
        return nullcontext()

    def _say(self, document: Mapping[str, Any], text: str) -> None:
        if self._as_json:
            sys.stdout.write(json.dumps(document) + "\n")
        else:
            say(text)


_Manner = _Tables | LogLines
"""How answers are written."""


def _list(setup: Setup, kind: str, manner: _Manner, *, shows_offline: bool) -> None:
    async def nodes(registry: Registry) -> list[NodeStatus]:
        return list(await registry.nodes(kind))

    found = [
        each
        for each in offline_commands.with_registry(setup, nodes)
        if shows_offline or each.state != NodeState.OFFLINE.value
    ]
    manner.listed(found)


def _asking_pd(setup: Setup, pd_urls: str) -> Setup:
    """The same for the registry of a PD. Raises ConfigError."""
    pd_addresses(pd_urls)  # what is wrong in it is said here
    upstream = msgspec.structs.replace(setup.config.upstream, kind="pd", pd_urls=pd_urls)
    return replace(setup, config=msgspec.structs.replace(setup.config, upstream=upstream))


def _secured(setup: Setup, certificates: Mapping[str, str]) -> Setup:
    """With the files of the command line, whose paths count from where it is run."""
    given = {key: str(Path.cwd() / path) for key, path in certificates.items() if path}
    security = msgspec.structs.replace(setup.config.security, **given)
    return replace(setup, config=msgspec.structs.replace(setup.config, security=security))


def _save(setup: Setup, directory: Path, time_zone: str, manner: _Manner) -> None:
    if setup.config.upstream.kind != "pd":
        raise ConfigError(
            "generate_meta needs --pd-urls: a PD, or a binlogd that stands in for one"
        )
    manner.saved(*save(setup, directory, time_zone))


def _mark(setup: Setup, node_id: str, state: str, kind: str, manner: _Manner) -> None:
    async def act(registry: Registry) -> list[NodeStatus]:
        return list(await mark(registry, node_id, state, [kind]))

    manner.marked(offline_commands.with_registry(setup, act))


def _ask(setup: Setup, node_id: str, action: str, kinds: Sequence[str], manner: _Manner) -> None:
    """This machine's node is asked where it listens, another one at the address it registered."""
    is_elsewhere = setup.config.upstream.kind == "pd"
    find = _registered if is_elsewhere else _reached
    reached = find(setup, node_id, kinds)
    if reached is None:
        raise not_registered(node_id, kinds)
    answer = put(reached, f"/state/{quote(node_id, safe='')}/{action}")
    is_done = answer["code"] == _DONE
    manner.acted(node_id, action, answer, is_done=is_done)
    if not is_done:
        raise typer.Exit(1)


def _registered(setup: Setup, node_id: str, kinds: Sequence[str]) -> Setup | None:
    """Where the registry says that a node is; None if it knows none."""

    async def find(registry: Registry) -> list[NodeStatus]:
        found = [await registry.node(kind, node_id) for kind in kinds]
        return [node for node in found if node is not None]

    for node in offline_commands.with_registry(setup, find):
        return _at(setup, node.host)
    return None


def _reached(setup: Setup, node_id: str, kinds: Sequence[str]) -> Setup | None:
    """Where this machine's node is, or where it knows a node; None if it knows none."""
    status = get_status(setup)
    own = {PUMP: status.node_id, DRAINER: status.drainer.node_id}
    if node_id in (own[kind] for kind in kinds):
        return setup
    for kind in kinds:
        for each in msgspec.convert(get_json(setup, f"/{kind}") or (), list[NodeEntry]):
            if each.node_id == node_id:
                return _at(setup, each.host)
    return None


def _at(setup: Setup, host: str) -> Setup:
    config = msgspec.structs.replace(setup.config, addr=host, binlog_socket="")
    return replace(setup, config=config, is_elsewhere=host != advertised(setup.config))


def _encrypt(text: str, manner: _Manner) -> None:
    key = os.environ.get(passwords.KEY_VARIABLE, "")
    if text:
        warn("others on this machine may see --text; use standard input")
    else:
        is_asked = sys.stdin.isatty()
        text = typer.prompt("password", hide_input=True) if is_asked else sys.stdin.readline()
        text = text.rstrip("\r\n")
    if not text:
        raise ConfigError("need to specify the text to be encrypt")
    if passwords.is_key_of_all(key):
        warn(
            f"the key is the one that everybody knows; set {passwords.KEY_VARIABLE} to 32 bytes as"
            " hexadecimal digits, here and where binlogd runs"
        )
    manner.encrypted(passwords.encrypt(text, key, os.getrandom))
