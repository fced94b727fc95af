"""What the tests of a Pump have around it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.pump_world import World, posix_world


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A directory on this machine's disk, and everything else under the hands of the test."""
    async with posix_world(tmp_path) as made:
        yield made
