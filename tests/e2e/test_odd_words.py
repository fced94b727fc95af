"""Commands with words that make no sense end in a sentence: in no stack, no signal, no silence."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest
import typer

from binlogd.cli import command_line
from tests.support.appliance import Appliance, run
from tests.support.recordings_reader import RECORDINGS, history
from tests.workload.recording import feed_recording

RECORDING = RECORDINGS / "few"
ODD = (
    *("", "-1", "0", "1.5", "nan", "18446744073709551615", "9" * 30, "a" * 5000, "é", "\u202e"),
    *("latest", "2026-13-45", "2026-11-29T15:11:00Z", "+25:00", "Europe/Nowhere", "10s", "-5 MiB"),
    *(
        "a.b",
        "*.*",
        "`a`.`b`",
        "%",
        "{x}",
        "[red]x[/]",
        "'",
        '"',
        "[]",
        "id=1",
        "=1",
        "json",
        "csv",
    ),
    *("/dev/null", "/nonexistent/x", "/proc/self/mem", "/", "/etc/passwd", ".", "out", "log"),
    *("data", "data/pump", "data/pump/shard-0", "data/pump/shard-0/value", "data/upstream.db"),
    *("data/pump/shard-0/value/000000.vlog", "data/pump/shard-0/index.db", "data/drainer"),
    *("file://", "file:///tmp", "s3://k:secret", "abfss://x@y/z", "https://x:99999", "http://[::1"),
    *("127.0.0.1:1", "127.0.0.1:99999", ":1", "binlogd://", "binlogd://127.0.0.1:1", "mysql://"),
    *("mysql://root@127.0.0.1:1", "mysql://u:p@h:x/d", "delta:lake", "iceberg:", "syncer"),
)
ENDLESS = {"serve", "bench"}, {"--follow", "--watch", "--wait"}
"""Commands and options that take their time as they should."""
PLAIN_EXITS = (0, 1, 2)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with a recording in it, whose node has ended."""
    directory = tmp_path_factory.mktemp("whole")
    with closing(Appliance(directory, history=history(RECORDING))) as appliance:
        appliance.start()
        asyncio.run(feed_recording(RECORDING, appliance.target))
        appliance.stop()
    (directory / "binlogd.toml").write_text('data-dir = "data"\n')
    return directory


def command_lines(rng: Random) -> Iterator[list[str]]:
    """Of any command any options, each with whatever it takes or does not."""
    commands: dict[str, Any] = typer.main.get_command(command_line()).commands  # type: ignore[attr-defined]  # a group's
    names = sorted(commands.keys() - ENDLESS[0])
    while True:  # until enough were taken
        name = rng.choice(names)
        words, parameters = [name], commands[name].params
        options = [each for each in parameters if each.param_type_name == "option"]
        if rng.random() < 0.75 and any("--config" in each.opts for each in options):
            words += ["--config", "binlogd.toml"]
        for each in parameters:
            is_asked = each.required or rng.random() < (3 / len(options) if options else 0)
            if each.param_type_name == "argument":
                words += [_value(rng, each)] * (each.required or rng.random() < 0.6)
            elif is_asked and not ENDLESS[1].intersection(each.opts):
                words += [each.opts[0], *([] if each.is_flag else [_value(rng, each)])]
        yield words


def _value(rng: Random, parameter: Any) -> str:
    choices: Sequence[str] = getattr(parameter.type, "choices", ())
    return rng.choice(choices if choices and rng.random() < 0.8 else ODD)


@pytest.mark.parametrize(
    ("seed", "count"),
    [
        *((seed, 12) for seed in range(4)),
        *(pytest.param(seed, 250, marks=pytest.mark.soak) for seed in range(10, 20)),
    ],
)
def test_a_command_with_odd_words_ends_in_a_sentence(
    whole: Path, tmp_path: Path, seed: int, count: int
) -> None:
    directory = tmp_path / "node"
    lines = command_lines(Random(seed))
    for _ in range(count):
        shutil.copytree(whole, directory)
        words = next(lines)
        done = run(directory, *words, timeout_s=120)
        said = done.stdout + done.stderr
        assert done.returncode in PLAIN_EXITS, (words, said)
        assert said.strip() or done.returncode == 0, words
        assert "Traceback" not in said, (words, said)
        shutil.rmtree(directory)
