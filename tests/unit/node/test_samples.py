"""Rates out of counters, for pictures."""

from __future__ import annotations

from binlogd.node.samples import MINUTES_MAX, SAMPLES_MAX, Counts, SampleHistory


def test_rates_are_per_second_since_the_sample_before() -> None:
    history = SampleHistory()
    assert history.take(1000, 0.5, Counts(10, 100))[1:] == (0.5, 0.0, 0.0)
    assert history.take(3000, None, Counts(16, 101))[1:] == (None, 3.0, 0.5)


def test_a_counter_that_began_anew_counts_from_zero() -> None:
    history = SampleHistory()
    history.take(1000, 0, Counts(10, 100))
    assert history.take(2000, 0, Counts(11, 7)).rows == 7.0


def test_a_clock_that_stands_still_or_goes_back_makes_no_rate() -> None:
    history = SampleHistory()
    history.take(1000, 0, Counts(0, 0))
    assert history.take(1000, 0, Counts(5, 5)).received == 0.0
    assert history.take(900, 0, Counts(9, 9)).received == 0.0
    assert history.take(1900, 0, Counts(10, 9)).received == 1.0


def test_no_more_than_some_minutes_are_remembered() -> None:
    history = SampleHistory()
    for second in range(SAMPLES_MAX + 5):
        history.take(second * 1000, 0, Counts(second, 0))
    assert len(history.samples()) == SAMPLES_MAX
    assert history.samples()[0].at_ms == 5000


def test_of_a_minute_that_is_over_the_largest_lag_and_the_mean_rates_stay_for_a_day() -> None:
    history = SampleHistory()
    for second in range(61):
        history.take(second * 1000, 9.0 if second == 30 else None, Counts(2 * second, 0))
    (minute,) = history.minutes()
    assert (minute.at_ms, minute.lag_s, minute.received) == (0, 9.0, 2.0)
    for number in range(MINUTES_MAX + 3):
        history.take((number + 2) * 60_000, None, Counts(0, 0))
    assert len(history.minutes()) == MINUTES_MAX
