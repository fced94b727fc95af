"""`binlogd ctl`: the words of the original's binlogctl.

It answers in the manner in which it is asked. By a word (`binlogd ctl pumps`) it is a command of
binlogd: tables, errors beside them, 2 for what is asked wrongly. By options alone (`-cmd pumps`),
as binlogctl is, it writes binlogctl's lines and has its exit codes, so that scripts go on.

Source: tidb-binlog binlogctl/config.go, nodes.go, main.go, meta.go, encrypt.go; pkg/node/node.go,
String; pingcap/tidb rfcs 2018-12-19-unified-log-format.md.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
import typer

from binlogd import __version__, offline_commands
from binlogd.commands.nodes import show_nodes
from binlogd.commands.options import AddrOption, ConfigOption, JsonOption, load_asking
from binlogd.commands.output import say, warn
from binlogd.commands.running import document_at, get_status, put
from binlogd.errors import BinlogdError, ConfigError
from binlogd.host import loop
from binlogd.host.clock import WallClock
from binlogd.node.membership import mark, not_registered
from binlogd.ports import NodeStatus, Registry
from binlogd.pump.state import NodeState
from binlogd.settings import passwords
from binlogd.settings.config import advertised
from binlogd.settings.quantities import pd_addresses
from binlogd.settings.setup import Setup
from binlogd.status import NodeEntry
from binlogd.tso import Tso, physical_ms
from binlogd.upstream.entry import DRAINER, PUMP

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
        if addr and word.partition("-")[0] not in _ACTIONS:
            raise ConfigError(
                f"--addr: not with {word}, which asks no node; whose registry, --pd-urls says"
            )
        if word == "encrypt":
            _encrypt(text, manner)
        elif is_meta:
            manner.saved(*save(setup, Path(data_dir or "binlog_position"), time_zone))
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


class LogLines:
    """The answers to one command as `binlogctl` writes them: lines of PingCAP's unified log format,
    whose words scripts look for. Nothing is said of a change in the registry, as there."""

    def listed(self, found: Sequence[NodeStatus]) -> None:
        """One line a node."""
        for each in found:
            kind = each.kind.removesuffix("s")
            log_line("INFO", "query node", type=kind, node=node_text(each))

    def marked(self, found: Sequence[NodeStatus]) -> None:
        """Silence is success."""

    def acted(self, node_id: str, action: str, answer: Mapping[str, Any], *, is_done: bool) -> None:
        """A refusal is a failure here; binlogctl does not read the answer."""
        if is_done:
            log_line("INFO", "Apply action on node success", action=action, NodeID=node_id)
        else:
            log_line(
                "FATAL", "fail to execute command", command=action, error=str(answer["message"])
            )

    def saved(self, ts: Tso, path: Path) -> None:
        """Where a new Drainer is to begin."""
        log_line("INFO", "save meta", meta=f"commitTS: {ts}", file=str(path))

    def encrypted(self, hidden: str) -> None:
        """For `encrypted_password`."""
        log_line("INFO", "encrypt text", encrypted=hidden)

    @contextmanager
    def failures(self, word: str) -> Iterator[None]:
        """An error of its block is a line and the exit code 1."""
        try:
            yield
        except BinlogdError as error:
            log_line("FATAL", "fail to execute command", command=word, error=str(error))
            raise typer.Exit(1) from error


def log_line(level: str, message: str, **facts: str) -> None:
    """One line of the log, of now."""
    now_ms = WallClock().wall_ms()
    now = datetime.fromtimestamp(now_ms // 1000).astimezone()
    stamp = f"{now:%Y/%m/%d %H:%M:%S}.{now_ms % 1000:03d} {now.isoformat()[-6:]}"
    shown = "".join(f" [{name}={_value(value)}]" for name, value in facts.items())
    sys.stdout.write(f"[{stamp}] [{level}] [<unknown>] [{_value(message)}]{shown}\n")


def node_text(node: NodeStatus) -> str:
    """A node as Go prints it; its time is in the zone of this machine, to the second."""
    heard = datetime.fromtimestamp(physical_ms(node.update_ts) // 1000).astimezone()
    return (
        f"{{NodeID: {node.node_id}, Addr: {node.host}, State: {node.state},"
        f" MaxCommitTS: {node.max_commit_ts}, UpdateTime: {heard:%Y-%m-%d %H:%M:%S %z %Z}}}"
    )


def _value(text: str) -> str:
    is_plain = text.isprintable() and not _QUOTED & set(text) and text
    return text if is_plain else json.dumps(text, ensure_ascii=False)


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
    if given and not security.ssl_ca:
        raise ConfigError("--ssl-ca: is missing; without it there is no TLS")
    return replace(setup, config=msgspec.structs.replace(setup.config, security=security))


def _mark(setup: Setup, node_id: str, state: str, kind: str, manner: _Manner) -> None:
    async def act(registry: Registry) -> list[NodeStatus]:
        return list(await mark(registry, node_id, state, [kind]))

    manner.marked(offline_commands.with_registry(setup, act))


def _ask(setup: Setup, node_id: str, action: str, kinds: Sequence[str], manner: _Manner) -> None:
    """This machine's node is asked where it listens, or at --addr, another one at the address that
    it registered."""
    is_by_name = setup.config.upstream.kind == "pd" and not setup.is_elsewhere
    find = _registered if is_by_name else _reached
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

    found = offline_commands.with_registry(setup, find)
    return _at(setup, found[0].host) if found else None


def _reached(setup: Setup, node_id: str, kinds: Sequence[str]) -> Setup | None:
    """Where this machine's node is, or where it knows a node; None if it knows none."""
    status = get_status(setup)
    own = {PUMP: status.node_id, DRAINER: status.drainer.node_id}
    if node_id in (own[kind] for kind in kinds):
        return setup
    for kind in kinds:
        for each in document_at(setup, f"/{kind}", list[NodeEntry] | None) or ():
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


_DIRECTORY_MODE, _FILE_MODE = 0o700, 0o644
_TIME = "%Y-%m-%d %H:%M:%S %z %Z"


def save(setup: Setup, directory: Path, time_zone: str) -> tuple[Tso, Path]:
    """Asks PD for the time and writes it; what was written, and where. The original's two lines of
    time make its file one that no Drainer can read; here they are comments. Raises ConfigError,
    UpstreamUnavailable."""
    if setup.config.upstream.kind != "pd":
        raise ConfigError(
            "generate_meta needs --pd-urls: a PD, or a binlogd that stands in for one"
        )
    from binlogd.node.pd_upstream import ask_pd_the_time  # other words need no client of PD

    ts = loop.run(ask_pd_the_time(setup))
    path = directory / "savepoint"
    try:
        directory.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
        beside = path.with_suffix(".tmp")
        beside.write_text("".join(f"{line}\n" for line in _lines(ts, time_zone)))
        beside.chmod(_FILE_MODE)
        os.replace(beside, path)
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror or error}; name a directory that may be written, by"
            " --data-dir"
        ) from error
    return ts, path


def _lines(ts: Tso, time_zone: str) -> list[str]:
    lines = [f"commitTS = {ts}"]
    if time_zone:
        now = datetime.fromtimestamp(physical_ms(ts) / 1000, tz=UTC)
        try:
            there = now.astimezone(ZoneInfo(time_zone))
        except (ZoneInfoNotFoundError, ValueError):
            warn(f"time zone {time_zone} is not known: left out")
        else:
            lines += [f"# {each.strftime(_TIME)}" for each in (now, there)]
    return lines


_QUOTED = frozenset(' "=[]\\')
