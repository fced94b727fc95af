"""The power fails while a Pump writes: whatever the disk kept of it, nothing acknowledged is lost.

A real process is recorded below SQLite and Python (tests/support/traced_files.py), and its files
are put together as they may be after the power failed (tests/support/power_loss.py).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from binlogd.errors import BinlogdError
from tests.support import strace
from tests.support.faults import RecordProperty, counted
from tests.support.power_loss import Crash, PowerLoss
from tests.support.pump_lives import AfterBoot, Commits, all_is_there, killed_writer
from tests.support.pump_world import spread
from tests.support.traced_files import Node, Recording, under

STATES = 8
FAILS = (AssertionError, BinlogdError, ExceptionGroup)
"""A Pump that meets damage while it gives what it has ends its tasks with it."""
SENSITIVE_STATES = 20
"""Among so many some are lost where something was not synced."""
FORGOTTEN: dict[str, Callable[[Node], bool]] = {
    "directories": lambda node: node.is_directory,
    "segments": lambda node: node.path.endswith(".vlog"),
}


@pytest.fixture(scope="module", autouse=True)
def _needs_strace() -> None:
    strace.skip_without()


async def recorded(directory: Path, *, lives: int = 1, transactions: int = 60) -> Recording:
    spread(directory, 2)
    recording = Recording(directory)
    for life in range(lives):
        trace = directory.with_name(f"trace-{life}")
        await killed_writer(directory, 1_000 + life * 100_000, transactions, under=under(trace))
        recording.take(trace)
        recording.settle()
    return recording


def told(crash: Crash) -> Commits:
    lines = crash.said.split(b"\n")[:-1]
    pairs = [line.split() for line in lines if b"[" not in line and line != b"refused"]
    return [(int(start), int(commit)) for start, commit in pairs]


async def survives(loss: PowerLoss, into: Path, *, moment: int, seed: int, lives: int) -> None:
    crash = loss.crashed(into, moment=moment, seed=seed)
    acknowledged = told(crash)
    upto = max((commit for _, commit in acknowledged), default=0) + 1_000_000
    try:
        await all_is_there(into, acknowledged, upto=upto, lives=lives, disk_of=AfterBoot)
    except FAILS as error:
        error.add_note(str(crash))
        raise
    shutil.rmtree(into)


async def survives_all(loss: PowerLoss, directory: Path) -> None:
    for number in range(SENSITIVE_STATES):
        into = directory / f"state-{number}"
        await survives(loss, into, moment=loss.moments[-1], seed=number, lives=1)


@pytest.mark.parametrize(
    ("states", "lives"), [(STATES, 1), pytest.param(600, 3, marks=pytest.mark.soak)]
)
async def test_a_pump_loses_nothing_when_the_power_fails(
    tmp_path: Path, record_property: RecordProperty, states: int, lives: int
) -> None:
    loss = PowerLoss(await recorded(tmp_path / "data", lives=lives))
    rng = Random(states)
    with counted(record_property, fault="power loss", target="Pump") as cases:
        for number in range(states):
            moment = rng.choice(loss.moments)
            await survives(loss, tmp_path / "state", moment=moment, seed=number, lives=lives)
            cases.one()


@pytest.mark.parametrize("forgotten", ["directories", "segments"])
async def test_a_pump_that_does_not_sync_is_found_out(tmp_path: Path, forgotten: str) -> None:
    """The search must be able to fail."""
    recording = await recorded(tmp_path / "data", transactions=400)
    recording.forget_syncs(FORGOTTEN[forgotten])
    loss = PowerLoss(recording)
    with pytest.raises(FAILS) as found:
        await survives_all(loss, tmp_path)
    if isinstance(found.value, ExceptionGroup):
        assert found.group_contains(BinlogdError)
