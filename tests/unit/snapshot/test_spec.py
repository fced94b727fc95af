"""Moments as people write them."""

from __future__ import annotations

import pytest

from binlogd.errors import ConfigError
from binlogd.settings.quantities import wall_clock
from binlogd.snapshot.spec import moment
from binlogd.tso import Tso, compose


def test_a_moment_is_the_latest_a_timestamp_or_a_time() -> None:
    assert moment("latest") == (0, 0)
    assert moment("latest-5m") == (0, 300_000)
    assert moment("latest-1500ms") == (0, 1500)
    assert moment("412518831548007863") == (412518831548007863, 0)
    whole = compose(1_714_566_600_000)
    for text in ("2024-05-01T12:30:00Z", "2024-05-01 14:30:00+02:00", "2024-05-01T12:30:00"):
        found = moment(text).ts
        assert whole <= found < compose(1_714_566_600_001)
        assert found + 1 == compose(1_714_566_600_001)


@pytest.mark.parametrize("text", ["", "yesterday", "0", "-5", "2024-13-01", str(1 << 63)])
def test_anything_else_is_refused_with_what_would_be_right(text: str) -> None:
    with pytest.raises(ConfigError, match="neither a TSO like"):
        moment(text)


@pytest.mark.parametrize("text", ["latest-", "latest-soon", "latest-0s", "latest--5m", "latest-5"])
def test_a_distance_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="latest-5m"):
        moment(text)


def test_a_timestamp_reads_as_time_in_utc() -> None:
    assert wall_clock(Tso(1_700_000_000_123 << 18 | 5)) == "2023-11-14T22:13:20.123Z"
