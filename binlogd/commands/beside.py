"""Which options mean nothing beside others, or without them: they are refused, here for all.

What somebody types promises something: records of one table, a wait, a time zone. A command that
went on without it would say that it was done.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import typer

from binlogd.errors import ConfigError


class Idle(NamedTuple):
    """Parameters of a command that mean nothing where `beside` is given, or where it `is_missing`;
    every one but `beside` and `known`, where `names` is empty."""

    beside: str
    names: tuple[str, ...] = ()
    why: str = ""
    is_missing: bool = False
    known: tuple[str, ...] = ()


_NOTHING_APPLIED = "it says what would be applied"
_ONLY_WRITES = "that only writes files for spark-submit"
_PATH = Idle("paths", ("data_dir",), "the PATH is read")
_IDLE: Mapping[str, tuple[Idle, ...]] = {
    "archive": (
        Idle("check", ("keep", "with_open", "schema_history"), "nothing is copied or removed"),
        Idle("keep", ("with_open", "schema_history"), "nothing is copied"),
        Idle("keep", ("base", "dry_run"), "nothing is removed", is_missing=True),
    ),
    "check": (Idle("repair", ("copy_to",), "nothing is changed", is_missing=True),),
    "dump": (
        Idle("raw_records", ("table", "heads", "full", "schema_history"), "they are not decoded"),
        Idle("follow", ("raw_records", "stop"), "there is no end"),
        _PATH,
    ),
    "export": (
        Idle("package", (), _ONLY_WRITES),
        Idle(
            "via",
            (),
            "the binlogd over there says where snapshots go and how ([export] in its"
            " configuration)",
            known=("as_of", "file_format", "base", "config_file", "data_dir", "as_json"),
        ),
        Idle("check", (), "nothing is exported", known=("against", "as_of", "as_json")),
        Idle("check", ("against",), "there is no snapshot to compare", is_missing=True),
        Idle("archive", ("wait",), "a running binlogd tells nothing of what an archive has"),
        Idle("dry_run", ("wait",), "nothing is exported"),
    ),
    "exports": (
        Idle("via", ("out", "named"), "that node lists what it was asked for"),
        Idle("named", ("out",), "both name the directory"),
    ),
    "pipeline": (
        Idle("package", (), _ONLY_WRITES),
        Idle("follow", ("interval",), "it ends with what is there", is_missing=True),
        Idle("base", ("base_time_zone",), "there is no dump", is_missing=True),
    ),
    "replay": (Idle("into", ("safe_mode", "time_zone"), _NOTHING_APPLIED, is_missing=True),),
    "skip": (
        Idle("commit_ts", ("reason",), "what is skipped is listed", is_missing=True),
        Idle("reason", ("commit_ts",), "nobody could tell later why", is_missing=True),
    ),
    "status": (
        Idle("watch", ("fail_if_stuck",), "there is more than one look"),
        Idle("watch", ("interval",), "there is one look", is_missing=True),
    ),
    "txn": (_PATH,),
    "undo": (Idle("into", ("as_json",), "it prints SQL", is_missing=True), _PATH),
}
"""By command."""


def refuse_idle(name: str, context: typer.Context) -> None:
    """Raises ConfigError for what was typed, and means nothing to the command `name` as it is."""
    for idle in _IDLE.get(name, ()):
        if bool(context.params.get(idle.beside)) == idle.is_missing:
            continue
        known = {"log_level", *idle.known, idle.beside}
        way = "without" if idle.is_missing else "with"
        why = f"not {way} {_shown(context).get(idle.beside)}, where {idle.why}"
        refuse_typed(context, idle.names or _shown(context).keys() - known, why)


def refuse_typed(context: typer.Context, names: Collection[str], why: str) -> None:
    """Raises ConfigError where the command line has one of these parameters."""
    given = [word for name, word in typed(context).items() if name in names]
    if given:
        raise ConfigError(f"{', '.join(given)}: {why}")


def typed(context: typer.Context) -> dict[str, str]:
    """Parameters that stand on the command line, as they are written there. A variable of the
    environment may speak of many commands."""
    return {
        name: word
        for name, word in _shown(context).items()
        if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
    }


def _shown(context: typer.Context) -> dict[str, str]:
    words = {each.name or "": each.opts[0] for each in context.command.params}
    return {name: word if word[0] == "-" else word.upper() for name, word in words.items()}
