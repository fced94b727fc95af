"""The whole system, simulated: fixed seeds, planted faults, and in the long run unseen seeds."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.sim.checks import Checks
from tests.sim.disk import SimDisk, SimFile
from tests.sim.plan import drawn
from tests.sim.scenarios import SCENARIOS
from tests.sim.shrinking import command
from tests.sim.world import Outcome, run

ROOT = Path(__file__).parents[2]
SEEDS = 16
SHORT_SEEDS, SHORT_SOAK_SEEDS, TOGETHER = 5, 100, 5
FOUND_BY = (4, 10, 13)
"""Seeds that find what the tests plant."""
FRESH, FRESH_SHORT = 50, 4
SOAK_SEEDS = 2_000


def held(outcome: Outcome) -> None:
    assert outcome.violation == "", f"{outcome.violation}\nrepeat: {command(outcome.plan)}"


@pytest.mark.parametrize(
    "first",
    [
        *range(0, SHORT_SEEDS, TOGETHER),
        *(
            pytest.param(first, marks=pytest.mark.soak)
            for first in range(SHORT_SEEDS, SHORT_SOAK_SEEDS, TOGETHER)
        ),
    ],
)
def test_whatever_fails_nothing_is_lost(first: int) -> None:
    for seed in range(first, first + TOGETHER):
        held(run(drawn(seed, is_short=True)))


def test_of_short_lives_that_nobody_has_seen() -> None:
    for _ in range(FRESH_SHORT):
        held(run(drawn(random.SystemRandom().randrange(1 << 32), is_short=True)))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_fails_in_a_long_life_nothing_is_lost(seed: int) -> None:
    held(run(drawn(seed)))


@pytest.mark.soak
def test_of_seeds_that_nobody_has_seen() -> None:
    for _ in range(FRESH):
        held(run(drawn(random.SystemRandom().randrange(1 << 32))))


@pytest.mark.parametrize("name", SCENARIOS)
def test_what_was_found_once_stays_away(name: str) -> None:
    held(run(SCENARIOS[name]))


@pytest.mark.parametrize(
    "lives", [("--short",), pytest.param((), marks=pytest.mark.soak)], ids=["short", "long"]
)
def test_a_seed_is_the_same_in_every_process(lives: tuple[str, ...]) -> None:
    """Nothing may depend on addresses, on hashes of texts, or on what ran before."""
    seed, is_short = 5, bool(lives)
    here = run(drawn(seed, is_short=is_short)).hash
    assert run(drawn(seed, is_short=is_short)).hash == here
    for hashes in ("0", "4711"):
        said = subprocess.run(
            [sys.executable, "-m", "tests.sim", str(seed), *lives],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hashes},
            capture_output=True,
            text=True,
            check=True,
        )
        assert f"trace {here}" in said.stdout


def test_a_disk_that_forgets_names_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(self: SimDisk, directory: Path) -> None:
        await self._wait("sync_s")

    monkeypatch.setattr(SimDisk, "sync_directory", nothing)
    assert any(run(drawn(seed)).violation for seed in FOUND_BY)


def test_a_database_of_another_time_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library's real thread answered, hours of simulated time passed before it, and each life
    ended as one that took too long."""
    monkeypatch.setattr("tests.sim.world.inline_sqlite", lambda _: nullcontext())
    assert "real threads, whose time is not simulated" in run(drawn(4)).violation


@pytest.mark.parametrize(
    ("seed", "directory", "invariant"),
    [(4, "value", "I1"), (10, "value", "I2"), (10, "value", "I12"), (10, "relay", "I9")],
)
def test_what_is_said_before_the_sync_is_found_out(
    monkeypatch: pytest.MonkeyPatch, seed: int, directory: str, invariant: str
) -> None:
    """By looking at the disk: whether the power fails later or not."""
    real = SimDisk.sync

    async def nothing(self: SimDisk, file: SimFile) -> None:
        path = next((path for path, each in self.files.items() if each is file), Path())
        if directory in path.parts:
            await self._wait("sync_s")
        else:
            await real(self, file)

    monkeypatch.setattr(SimDisk, "sync", nothing)
    if invariant == "I2":  # seen when the power fails, and I12 each second
        monkeypatch.setattr(Checks, "_look_at_what_is_needed", lambda _: None)
    assert f"{invariant}: " in run(drawn(seed)).violation


@pytest.mark.soak
@pytest.mark.parametrize("first", range(10_000, 10_000 + SOAK_SEEDS, 50))
def test_of_many_seeds(first: int) -> None:
    for seed in range(first, first + 50):
        held(run(drawn(seed)))
