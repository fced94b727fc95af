"""What tests of real parts share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.spark import WarmSpark


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmSpark]:
    """One Spark session for all tests of a worker; skips them where there is no Java."""
    from tests.support.spark import warm_spark  # Spark and lakes are slow to import

    with warm_spark(tmp_path_factory.mktemp("spark")) as session:
        yield session
