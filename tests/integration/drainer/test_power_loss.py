"""The power fails while a Drainer works: whatever the disk kept, it goes on without a loss, and
nothing comes twice; and where the upstream is gone, the relay log restores what was applied."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from binlogd.errors import BinlogdError
from binlogd.host.disk import PosixDisk
from binlogd.tso import NO_TS, Tso
from tests.support import strace
from tests.support.drainer_lives import AT_ONCE, Replicating
from tests.support.faults import RecordProperty, counted
from tests.support.killed import recorded
from tests.support.power_loss import Crash, PowerLoss
from tests.support.traced_files import Recording

PROGRAM = "tests.support.drainer_lives"


SENSITIVE_STATES = 20
"""Among so many some are lost where nothing was synced."""


class Size(NamedTuple):
    """How much of the recording, how many states of it, and how many processes in a row."""

    transactions: int
    states: int
    lives: int


@pytest.fixture(scope="module", autouse=True)
def _needs_strace() -> None:
    strace.skip_without()


@pytest.fixture
def disk() -> Iterator[PosixDisk]:
    with closing(PosixDisk(threads=4)) as disk:
        yield disk


def made(directory: Path) -> Path:
    directory.mkdir()
    return directory


def saved_ts(crash: Crash) -> Tso:
    """Of the last checkpoint that was told to be stored."""
    return max(saved(crash.said.split(b"\n")[:-1]), default=NO_TS)


class Judge:
    """What a Drainer and a restore make of a state."""

    def __init__(self, kind: str, count: int, disk: PosixDisk) -> None:
        self.kind, self.count, self.disk = kind, count, disk
        self.expected: Sequence[object] = ()

    def replica(self, directory: Path) -> Replicating:
        return Replicating(directory, self.kind, self.count, self.disk)

    async def prepare(self, directory: Path) -> None:
        """Without any fault."""
        replica = self.replica(directory)
        await replica.finish(NO_TS)
        self.expected = replica.content()
        assert self.expected

    async def check(self, directory: Path, crash: Crash) -> None:
        """Both on what is in a directory, which is gone afterwards."""
        copy = directory.with_name("copy")
        shutil.copytree(directory, copy)
        try:
            await self._restored(self.replica(copy))
            await self._goes_on(self.replica(directory), saved_ts(crash))
        except (AssertionError, BinlogdError, TimeoutError) as error:
            error.add_note(str(crash))
            raise
        shutil.rmtree(directory)
        shutil.rmtree(copy)

    async def _goes_on(self, replica: Replicating, acknowledged: Tso) -> None:
        """The upstream has deleted what was said to be needed no more."""
        stored, _ = await replica.applied_ts()
        assert (stored or NO_TS) >= acknowledged, "a checkpoint went back"
        await replica.finish(acknowledged)
        assert replica.content() == self.expected

    async def _restored(self, replica: Replicating) -> None:
        """The upstream is gone, and comes again."""
        stored, applied_ts = await replica.applied_ts()
        if stored is None:
            return  # it has not begun
        assert await replica.restore() >= applied_ts
        if self.kind == "file":
            found = replica.content()
            assert found == self.expected[: len(found)]
        await replica.finish(NO_TS)
        assert replica.content() == self.expected


async def replicated(directory: Path, judge: Judge, rng: Random, lives: int) -> Recording:
    """The last life comes to its end; those before it are killed."""
    recording = Recording(directory)
    words = ("-m", PROGRAM, str(directory), judge.kind, str(judge.count))
    for life in range(lives):
        enough = rng.randrange(1, judge.count // (AT_ONCE * lives * 2))
        is_last = life + 1 == lives
        is_enough = None if is_last else lambda said, enough=enough: len(saved(said)) > enough
        await recorded(recording, words, is_enough=is_enough)
    return recording


def saved(said: Sequence[bytes]) -> list[Tso]:
    """The checkpoints that were told to be stored."""
    return [Tso(int(line.split()[1])) for line in said if line.startswith(b"saved ")]


async def goes_on_always(judge: Judge, loss: PowerLoss, directory: Path) -> None:
    for number in range(SENSITIVE_STATES):
        state = directory / f"forgotten-{number}"
        await judge.check(state, loss.crashed(state, moment=loss.moments[-1], seed=number))


@pytest.mark.parametrize("kind", ["file", "sqlite"])
@pytest.mark.parametrize(
    "size", [Size(80, 3, 1), pytest.param(Size(300, 400, 4), marks=pytest.mark.soak)]
)
async def test_a_drainer_goes_on_when_the_power_fails(
    tmp_path: Path, disk: PosixDisk, record_property: RecordProperty, kind: str, size: Size
) -> None:
    rng = Random(size.states)
    judge = Judge(kind, size.transactions, disk)
    await judge.prepare(made(tmp_path / "whole"))
    recording = await replicated(made(tmp_path / "data"), judge, rng, size.lives)
    loss = PowerLoss(recording)
    with counted(record_property, fault="power loss", target=f"Drainer, {kind}") as cases:
        for number in range(size.states):
            state = tmp_path / "state"
            crash = loss.crashed(state, moment=rng.choice(loss.moments), seed=number)
            await judge.check(state, crash)
            cases.one()
    recording.forget_syncs(lambda _: True)
    loss = PowerLoss(recording)
    with pytest.raises((AssertionError, BinlogdError)):
        await goes_on_always(judge, loss, tmp_path)
