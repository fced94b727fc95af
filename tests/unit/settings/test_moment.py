"""Moments that people write."""

from __future__ import annotations

import pytest

from binlogd.errors import ConfigError
from binlogd.settings.quantities import first_ts, last_ts, wall_clock
from binlogd.tso import MAX_TS, Tso, compose


def test_a_timestamp_is_itself_at_both_ends() -> None:
    assert first_ts("412518831548007863", "--from") == last_ts("412518831548007863", "--to")


@pytest.mark.parametrize(
    "text", ["2023-11-14T22:13:20Z", "2023-11-14 22:13:20", "2023-11-14T23:13:20+01:00"]
)
def test_a_time_stands_for_its_millisecond(text: str) -> None:
    assert first_ts(text, "--from") == compose(1_700_000_000_000)
    assert last_ts(text, "--to") == compose(1_700_000_000_001) - 1
    assert wall_clock(Tso(last_ts(text, "--to"))) == "2023-11-14T22:13:20.000Z"


@pytest.mark.parametrize("text", ["", "yesterday", "-5", "1969-12-31T23:59:59Z", "9" * 5000])
def test_anything_else_is_refused_with_the_option_that_it_was_given_for(text: str) -> None:
    with pytest.raises(ConfigError, match="--from"):
        first_ts(text, "--from")


def test_a_time_above_every_timestamp_is_the_last_one() -> None:
    assert last_ts("9999-12-31", "--to") == MAX_TS
    assert compose(0) < first_ts("9999-12-31T23:59:59-14:00", "--from") < MAX_TS


def test_a_time_whose_zone_puts_it_before_1970_is_refused() -> None:
    assert first_ts("1970-01-01T00:00:00Z", "--from") == 0
    with pytest.raises(ConfigError, match="before 1970"):
        first_ts("1970-01-01T00:00:00+14:00", "--from")
