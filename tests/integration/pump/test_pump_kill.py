"""kill -9 at any moment: what a writer was told is durable can be pulled afterwards, once."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.faults import RecordProperty, counted
from tests.support.pump_lives import Commits, killed_writer, nothing_is_lost


@pytest.mark.parametrize("lives", [3, pytest.param(150, marks=pytest.mark.soak)])
async def test_what_was_acknowledged_survives_kill_9(
    tmp_path: Path, lives: int, record_property: RecordProperty
) -> None:
    rng = random.Random(9)
    acknowledged: Commits = []
    directory, first = tmp_path / "data", 1_000
    with counted(record_property, fault="kill -9", target="Pump") as cases:
        for _ in range(lives):
            new, refused = await killed_writer(directory, first, rng.randrange(50, 3_000))
            assert (len(new) >= 50, refused) == (True, 0)
            acknowledged += new
            first = max(commit_ts for _, commit_ts in new) + 10_000
            cases.one()
        await nothing_is_lost(directory, acknowledged, upto=first, lives=lives)
