"""What a command imports before it does anything: no running node, where it needs none."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer

from binlogd.cli import COMMANDS, command_line
from binlogd.native import is_compiled

RUNS_A_NODE = {"serve", "restore"}
_LOOK = """
import sys
from binlogd.cli import command_line

for name in sys.argv[2:]:
    command_line([name])
print([each for each in sys.argv[1].split() if each in sys.modules])
"""


def _imported(names: list[str], looked_for: str) -> str:
    words = [sys.executable, "-c", _LOOK, looked_for, *names]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def test_no_command_imports_the_service_or_spark_before_it_needs_them() -> None:
    names = sorted(COMMANDS.keys() - RUNS_A_NODE)
    assert _imported(names, "binlogd.app pyspark pyarrow") == "[]"


def test_what_asks_a_running_node_reads_no_binlogs() -> None:
    rows = "binlogd.tidb.row binlogd.wire.codec aiomysql pymysql numpy aiohttp grpclib"
    assert _imported(["status", "health", "state", "page"], rows) == "[]"


def test_a_start_loads_no_library_that_a_library_may_bring_for_itself() -> None:
    """What reads the words of a command line loads some things when it reads them."""
    read = "import binlogd.cli as cli\ntry: cli.command_line(W)(W)\nexcept cli.ConfigError: pass\n"
    loaded = subprocess.run(
        [
            sys.executable,
            "-c",
            f"W = ['serve', '--config', '/']\n{read}import sys; print(*sys.modules)",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert "binlogd.app" in loaded
    assert not {"pydantic", "pyspark", "pyarrow", "numpy", "pandas"} & set(loaded)


_RUN = """
import sys
from binlogd.cli import main

looked_for, *sys.argv[1:] = sys.argv[1:]
try:
    main()
except SystemExit as ended:
    print(ended.code, [each for each in looked_for.split() if each in sys.modules])
"""


@pytest.mark.parametrize("name", ["health", "health --json", "health --wait 0.1"])
def test_what_is_run_every_few_seconds_needs_no_loop_no_log_and_no_screen(name: str) -> None:
    heavy = "asyncio uvloop structlog rich"
    if not is_compiled():  # else digests of sources are compared, which no installed package has
        heavy += " hashlib"
    words = [sys.executable, "-c", _RUN, heavy, *name.split(), "--addr", "127.0.0.1:1"]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert said.splitlines()[-1].endswith(" []"), said


def test_the_status_as_json_needs_no_screen_either() -> None:
    assert _imported(["status"], "asyncio uvloop structlog rich") == "[]"


@pytest.mark.parametrize("word", ["--help", "-h", "staus"])
def test_the_overview_imports_no_command_and_no_log(word: str) -> None:
    others = "binlogd.commands.dump binlogd.commands.options structlog asyncio"
    assert _imported([word], others) == "[]"


def test_the_overview_says_of_each_command_what_its_own_help_begins_with() -> None:
    shown = typer.main.get_command(command_line([]))
    whole = typer.main.get_command(command_line())
    assert isinstance(shown, typer.core.TyperGroup)
    assert isinstance(whole, typer.core.TyperGroup)
    assert list(shown.commands) == list(whole.commands) == list(COMMANDS)
    for name, command in whole.commands.items():
        assert shown.commands[name].get_short_help_str(200) == command.get_short_help_str(200)
        assert shown.commands[name].rich_help_panel == command.rich_help_panel  # type: ignore[attr-defined]
