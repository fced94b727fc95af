"""`binlogd check-config`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from binlogd.commands.options import (
    AddrOption,
    ConfigOption,
    DataDirOption,
    JsonOption,
    load_settings,
)
from binlogd.commands.output import say
from binlogd.commands.status_screen import upstream_text
from binlogd.errors import ConfigError, DownstreamUnavailable
from binlogd.host import loop
from binlogd.host.disk import check_writable
from binlogd.node.assembly import downstream_of
from binlogd.node.reach import reach
from binlogd.node.replicated import table_filter
from binlogd.node.tracing import make_tracing
from binlogd.node.upstreams import look
from binlogd.settings.config import Config, SecurityConfig
from binlogd.settings.effects import flattened, without_effect
from binlogd.settings.setup import Setup, server_tls
from binlogd.settings.sources import Settings, shown
from binlogd.status import UpstreamStatus
from binlogd.upstream.metrics import upstream_status

_DEFAULT = "default"


def check_config(
    config_file: ConfigOption = None,
    data_dir: DataDirOption = None,
    addr: AddrOption = None,
    is_whole: Annotated[
        bool, typer.Option("--all", help="Every key, not only those that are given.")
    ] = False,
    asks: Annotated[
        bool, typer.Option("--ask", help="Ask the upstream and the downstream as well.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check the configuration, and show what it does.

    Shows the values that differ from the defaults, and where each one comes from: the file, a
    variable BINLOGD_..., a file with a secret, or the command line. Secrets are shown as ***.
    --json prints the whole configuration with the origins. --ask connects to PD or TiDB and to the
    downstream, as a start does, and changes nothing. The exit code is 1 if the downstream cannot be
    used.

        binlogd check-config --config binlogd.toml --ask
    """
    found = load_settings(config_file, data_dir=data_dir, addr=addr)
    setup = Setup(found.config)
    table_filter(found.config.syncer)
    server_tls(setup)
    make_tracing(setup, "")
    asked = _ask(setup) if asks else None
    code = 0 if asked is None or asked.is_reached else 1
    if as_json:
        answers = asked.document() if asked is not None else {}
        answers["warnings"] = list(_warnings(setup, asked))
        sys.stdout.write(json.dumps(_document(found) | answers) + "\n")
        raise typer.Exit(code)
    say(f"{config_file or 'The built-in defaults'} {'is' if config_file else 'are'} valid.")
    say(_what_it_does(setup))
    say(_who_may_act(found.config.security))
    if asked is not None:
        cluster = asked.cluster_id or "not known yet"
        say(f"cluster {cluster}; upstream {upstream_text(asked.upstream)}")
    for text in _warnings(setup, asked):
        say(text, "warning:")
    for key, reason in without_effect(found.config, Config()):
        say(f"{key}: without effect: {reason}")
    table = Table(box=None)
    for name in ("key", "value", "from"):
        table.add_column(name, overflow="fold")
    for key, value in flattened(found.config):
        if is_whole or key in found.origins:
            text = json.dumps(shown(key, value), ensure_ascii=False)
            table.add_row(key, text, found.origins.get(key, _DEFAULT))
    if table.row_count:
        Console().print(table, highlight=False, markup=False, soft_wrap=True)
    raise typer.Exit(code)


def _what_it_does(setup: Setup) -> str:
    config, into = setup.config, downstream_of(setup)
    received = (
        f"binlogs are received at {config.addr} and kept in {setup.data_dir}, in"
        f" {config.pump.shards} shards"
    )
    replicated = f"they are replicated into {into.db_type} {into.address}"
    if not setup.has_pump:
        return f"Pumps elsewhere are pulled: {replicated}."
    return f"{received[0].upper()}{received[1:]}; {replicated if setup.has_drainer else 'no more'}."


def _warnings(setup: Setup, asked: _Asked | None) -> Iterator[str]:
    upstream = setup.config.upstream
    if setup.has_drainer and upstream.kind == "standalone" and not upstream.schema_history:
        yield (
            "there is no schema history: the first DDL or row will stop the replication; set"
            ' upstream.schema-history, or upstream.kind = "pd" or "tidb"'
        )
    if (file := setup.history_file) is not None and not file.is_file():
        yield f"upstream.schema-history: {file}: there is no such file"
    if asked is not None and asked.warning:
        yield asked.warning
    if asked is None and setup.has_drainer:
        yield "upstream and downstream were not asked; --ask does"


def _who_may_act(security: SecurityConfig) -> str:
    """In one sentence, as binlogd/serving/routes/guard.py lets through."""
    own = "" if security.admin_token else " (the node's own, in its data directory)"
    who = [f"whoever has the admin token{own}"]
    if security.operators_cn:
        who.append(f"certificates of {', '.join(security.operators_cn)}")
    if security.operators_from:
        who.append(
            f"{', '.join(security.operators_from)} (states of nodes only, as binlogctl changes)"
        )
    beside = ["this machine", *security.peers_from]
    if security.cert_allowed_cn:
        beside.append("whoever has a certificate")
    return (
        f"actions are taken from: {'; '.join(who)}\n"
        f"binlogs are pulled, and the registry is used, from: {', '.join(beside)}"
    )


class _Asked(NamedTuple):
    """What others said; `warning` is about the downstream, "" where all is well, `is_reached`
    whether it answered."""

    cluster_id: int | None
    upstream: UpstreamStatus
    warning: str
    is_reached: bool

    def document(self) -> dict[str, Any]:
        upstream = {"cluster_id": self.cluster_id, **msgspec.to_builtins(self.upstream)}
        return {"upstream": upstream, "downstream_warning": self.warning}


def _ask(setup: Setup) -> _Asked:
    check_writable("data-dir", setup.data_dir)
    cluster_id, _, statistics = loop.run(look(setup))
    if not setup.has_drainer:
        return _Asked(cluster_id, upstream_status(statistics), "", True)
    try:
        warning, is_reached = loop.run(reach(setup)), True
    except (ConfigError, DownstreamUnavailable) as error:
        warning, is_reached = f"the downstream cannot be used: {error}", False
    return _Asked(cluster_id, upstream_status(statistics), warning, is_reached)


def _document(found: Settings) -> dict[str, Any]:
    values = {key: shown(key, value) for key, value in flattened(found.config)}
    idle = dict(without_effect(found.config, Config()))
    return {"config": values, "origins": dict(found.origins), "without_effect": idle}
