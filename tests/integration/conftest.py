"""What tests of real parts share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.spark import WarmSpark, warm_spark


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmSpark]:
    """One Spark session for all tests of a worker; skips them where there is no Java."""
    with warm_spark(tmp_path_factory.mktemp("spark")) as session:
        yield session
