"""Taking a changed configuration while the node runs: filters, lanes, log level, who may act.

All or nothing: a configuration that is wrong anywhere is refused whole, and the one before stays.
Filters and lanes belong to a Drainer; it finishes what it has pulled and another one goes on, so
each transaction is judged by one set of rules. What else has changed is named, and waits for a
restart. Certificates need none of this: they are followed by themselves.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import replace

import msgspec
import structlog

from binlogd.errors import ConfigError
from binlogd.node.replicated import table_filter
from binlogd.serving.answers import DONE_CODE, Reply
from binlogd.settings import config
from binlogd.settings.config import Config
from binlogd.settings.effects import flattened, idle_keys
from binlogd.settings.operators import Operators, operators
from binlogd.settings.quantities import listen_address
from binlogd.settings.setup import Setup
from binlogd.settings.sources import replaced
from binlogd.telemetry.logs import Lines, set_up_logging

log = structlog.get_logger(__name__)

LOG_LEVEL = "log-level"
ACTING_KEYS = frozenset(
    {
        "security.admin-token",
        "security.admin-token-file",
        "security.operators-from",
        "security.host-names",
    }
)
DRAINER_KEYS = frozenset(
    {
        "syncer.worker-count",
        "syncer.ignore-schemas",
        "syncer.ignore-txn-commit-ts",
        "syncer.replicate-do-db",
        "syncer.replicate-do-table",
        "syncer.ignore-table",
        "syncer.table-migrate-rule",
        "syncer.binlog-filter-rule",
        "syncer.case-sensitive",
        "syncer.sync-ddl",
        "syncer.row-not-found",
    }
)
RELOADABLE = DRAINER_KEYS | ACTING_KEYS | {LOG_LEVEL}


class Reloading:
    """The configuration of a running node. `read_again` may raise ConfigError."""

    def __init__(self, setup: Setup, read_again: Callable[[], Setup]) -> None:
        self.setup = setup
        """As it holds now."""
        self.made_token = ""
        """What the node has made for itself; it counts where none is configured."""
        self.log_lines = Lines(sys.stdout)
        self._read_again = read_again

    @property
    def admin_token(self) -> str:
        """What actions ask for; "" lets nobody act."""
        return self.setup.config.security.admin_token or self.made_token

    @property
    def host_names(self) -> Set[str]:
        """By which others may call this node, beside its addresses."""
        found = self.setup.config
        hosts = [listen_address(each)[0] for each in (found.addr, config.advertised(found))]
        every = (*hosts, socket.gethostname(), *found.security.host_names)
        return {name.strip().rstrip(".").lower() for name in every}

    @property
    def operators(self) -> Operators:
        """Who may act without it."""
        security = self.setup.config.security
        return operators(security.operators_from, security.operators_cn)

    def reload(self, renew_drainer: Callable[[], None]) -> Reply:
        """Reads again, and takes what can be taken; `renew_drainer` is called where needed."""
        try:
            wanted = self._read_again().config
            changed = changed_keys(self.setup.config, wanted)
            taken = self._with(wanted, changed & RELOADABLE)
            table_filter(taken.syncer)
        except ConfigError as error:
            log.warning("reload_refused", cause=str(error))
            return Reply.refused(f"{error}; the configuration before stays in force")
        self.setup = replace(self.setup, config=taken)
        applied, waiting = sorted(changed & RELOADABLE), sorted(changed - RELOADABLE)
        if LOG_LEVEL in changed:
            set_up_logging(taken.log_level, self.log_lines)
        if changed & DRAINER_KEYS:
            renew_drainer()
        idle = {key: why for key, why in self._idle() if key in changed}
        log.info(
            "configuration_reloaded", applied=applied, needs_restart=waiting, without_effect=idle
        )
        return Reply(
            _said(applied, waiting, idle),
            DONE_CODE,
            {"applied": applied, "restart": waiting, "without_effect": idle},
        )

    def _idle(self) -> Iterator[tuple[str, str]]:
        """What does nothing here, with the reason; where nothing is replicated, commands alone ask
        for what a Drainer takes."""
        yield from idle_keys(self.setup.config)
        if not self.setup.has_drainer:
            yield from dict.fromkeys(DRAINER_KEYS, "this node replicates nothing").items()

    def _with(self, wanted: Config, keys: frozenset[str]) -> Config:
        """The present configuration with some keys of another. Raises ConfigError for a pair of old
        and new that does not go together."""
        values = dict(flattened(wanted))
        taken = self.setup.config
        for key in keys:
            taken = replaced(taken, key, values[key])
        return config.from_tree(msgspec.to_builtins(taken), "with what needs no restart")


def changed_keys(before: Config, after: Config) -> frozenset[str]:
    """What differs; a key that holds a list or a table by names is one."""
    values = dict(flattened(before))
    return frozenset(key for key, value in flattened(after) if values[key] != value)


def _said(applied: list[str], waiting: list[str], idle: Mapping[str, str]) -> str:
    parts = [f"taken: {', '.join(applied)}" if applied else "nothing to take has changed"]
    if waiting:
        parts.append(f"needs a restart: {', '.join(waiting)}")
    parts += [f"{key}: without effect: {why}" for key, why in idle.items()]
    return "; ".join(parts)
