"""Killed in, or refused, the n-th system call of a kind, for one n after the other.

Whichever it is, a Pump has what it acknowledged, and a Drainer goes on to the end that it has
without a fault. Calls are counted for each thread.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest

from binlogd.host.disk import PosixDisk
from binlogd.tso import NO_TS
from tests.support import strace
from tests.support.drainer_lives import Replicating
from tests.support.faults import RecordProperty, counted
from tests.support.killed import ROOT, child_of, end
from tests.support.pump_lives import SPOOLED_OF, nothing_is_lost
from tests.support.pump_world import spread

TRANSACTIONS = 150
ENOUGH = 300
"""Commits after which a writer that met no fault is killed."""
TIMES = (1, 2, 3, 4, 5, 7, 9, 12, 16, 22, 30, 45)
CALLS = ("write", "fdatasync", "fsync", "ftruncate", "pwrite64", "mkdir")
FAULTS = ("signal=SIGKILL", "error=EIO", "error=ENOSPC")


@pytest.fixture(autouse=True)
def _needs_strace() -> None:
    strace.skip_without()


@pytest.fixture
def disk() -> Iterator[PosixDisk]:
    with closing(PosixDisk(threads=4)) as disk:
        yield disk


@dataclass
class Lived:
    """What a process said, and how it ended; `met` tells whether the fault came."""

    said: list[bytes]
    code: int
    met: bool


async def lived(
    directory: Path, words: Sequence[str], fault: str, *, lines_max: int | None = None
) -> Lived:
    """Runs Python with these words and a fault; killed when it has said so many lines."""
    call, trace = fault.split(":")[0], directory.with_name("calls")
    under = [*strace.UNDER, "-o", str(trace), "-e", f"trace={call}"]
    process = await asyncio.create_subprocess_exec(
        *(*under, "-e", f"inject={fault}", sys.executable, *words),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    said: list[bytes] = []
    async for line in process.stdout:
        said.append(line)
        if lines_max is not None and len(said) == lines_max:
            end(child_of(process.pid))
    code = await process.wait()
    text = trace.read_text(errors="replace")
    return Lived(said, code, "(INJECTED)" in text or "killed by SIGKILL" in text)


def acknowledged(said: Sequence[bytes]) -> list[tuple[int, int]]:
    """Of a Pump's writer."""
    pairs = [line.split() for line in said if b"[" not in line and line.endswith(b"\n")]
    return [(int(each[0]), int(each[1])) for each in pairs if len(each) == 2]


@pytest.mark.parametrize(
    ("call", "at"),
    [
        pytest.param("fdatasync", (9,), id="short"),
        *(pytest.param(call, TIMES, id=call, marks=pytest.mark.soak) for call in CALLS),
    ],
)
async def test_a_pump_killed_in_any_call_has_what_it_acknowledged(
    tmp_path: Path, record_property: RecordProperty, call: str, at: Sequence[int]
) -> None:
    with counted(record_property, fault=f"kill -9 in the n-th {call}", target="Pump") as cases:
        for times in at:
            directory = tmp_path / f"data-{times}"
            spread(directory, 2)
            words = ["-m", "tests.support.pump_writer", str(directory)]
            words += ["1000", str(SPOOLED_OF)]
            fault = f"{call}:signal=SIGKILL:when={times}"
            life = await lived(directory, words, fault, lines_max=ENOUGH)
            told = acknowledged(life.said)
            assert told or times < 5 or life.met
            if len(list(directory.rglob("*.vlog"))) == 2 or told:  # else there is no log yet
                upto = max((commit for _, commit in told), default=1_000) + 10_000
                await nothing_is_lost(directory, told, upto=upto, lives=1)
            shutil.rmtree(directory)
            shutil.rmtree(tmp_path / "copy", ignore_errors=True)
            cases.one()


@pytest.mark.parametrize(
    ("call", "fault", "kind", "at"),
    [
        pytest.param("rename", "signal=SIGKILL", "file", (4,), id="short"),
        *(
            pytest.param(*each, TIMES, id="-".join(each), marks=pytest.mark.soak)
            for each in product(("fdatasync", "rename"), FAULTS, ("file", "sqlite"))
        ),
    ],
)
async def test_a_drainer_that_meets_a_fault_in_any_call_ends_as_without(
    tmp_path: Path,
    disk: PosixDisk,
    record_property: RecordProperty,
    call: str,
    fault: str,
    kind: str,
    at: Sequence[int],
) -> None:
    whole = tmp_path / "whole"
    Path.mkdir(whole)
    expected = await _finished(Replicating(whole, kind, TRANSACTIONS, disk))
    name = "kill -9" if "SIGKILL" in fault else fault.partition("=")[2]
    with counted(
        record_property, fault=f"{name} in the n-th {call}", target=f"Drainer, {kind}"
    ) as cases:
        for times in at:
            directory = tmp_path / f"data-{times}"
            Path.mkdir(directory)
            words = ["-m", "tests.support.drainer_lives", str(directory), kind, str(TRANSACTIONS)]
            life = await lived(directory, words, f"{call}:{fault}:when={times}")
            if life.met and life.code:
                assert "SIGKILL" in fault or str(directory).encode() in b"".join(life.said)
            again = await _finished(Replicating(directory, kind, TRANSACTIONS, disk))
            assert again == expected, (call, fault, times)
            shutil.rmtree(directory)
            cases.one()
            if not life.met:
                break  # nobody makes so many


async def _finished(replica: Replicating) -> Sequence[object]:
    await replica.finish(NO_TS)
    return replica.content()
