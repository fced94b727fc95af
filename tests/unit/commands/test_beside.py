"""Options that mean nothing beside others are refused before a command begins."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from binlogd.cli import command_line
from binlogd.commands.beside import _IDLE, Idle
from binlogd.commands.manner import with_manners
from binlogd.commands.options import ConfigOption
from binlogd.errors import ConfigError

RULES = [(name, rule) for name, rules in _IDLE.items() for rule in rules]


def parameters(name: str) -> dict[str, Any]:
    program: Any = typer.main.get_command(command_line([name]))
    return {str(each.name): each for each in program.commands[name].params}


def written(parameter: Any) -> list[str]:
    """A parameter as somebody types it; a number is a word and a path, too."""
    value = getattr(parameter.type, "choices", ["7"])[0]
    if parameter.param_type_name == "argument":
        return [value]
    return [parameter.opts[0]] if parameter.is_flag else [parameter.opts[0], value]


def shown(parameter: Any) -> str:
    word: str = parameter.opts[0]
    return word if word.startswith("-") else word.upper()


@pytest.mark.parametrize(("name", "rule"), RULES, ids=lambda each: getattr(each, "beside", each))
def test_each_is_refused_where_it_would_do_nothing(name: str, rule: Idle) -> None:
    known = parameters(name)
    assert {rule.beside, *rule.names, *rule.known} <= known.keys()
    beside, begun = known[rule.beside], [name]
    for each in known.values():
        if each.required or (each is beside and not rule.is_missing):
            begun += written(each)
    others = known.keys() - {rule.beside, *rule.known, "log_level"}
    for idle in rule.names or others:
        with pytest.raises(ConfigError, match=r": not with(out)? ") as refused:
            CliRunner().invoke(
                command_line([name]), [*begun, *written(known[idle])], catch_exceptions=False
            )
        assert {shown(beside), shown(known[idle])} <= set(re.findall(r"[\w-]+", str(refused.value)))


def exported(config_file: ConfigOption = None, package: str = "") -> None:
    typer.echo(f"{config_file} {package}")


def test_what_the_environment_says_to_all_commands_is_not_held_against_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cli = typer.Typer()
    cli.command()(with_manners("export", exported))
    monkeypatch.setitem(os.environ, "BINLOGD_CONFIG", "here.toml")
    assert CliRunner().invoke(cli, ["--package", "job"]).stdout == "here.toml job\n"
    with pytest.raises(ConfigError, match=r"^--config: not with --package, where that only"):
        CliRunner().invoke(cli, ["--package", "job", "--config", "x.toml"], catch_exceptions=False)
