"""A rise is found where there is one, and none is claimed where there is noise alone."""

from __future__ import annotations

import random

import pytest

from tests.soak.slopes import Verdict, by_interval, fitted

MINUTES = 30


def samples(rise_per_hour: float, *, noise: float, kept: float = 0.0) -> list[tuple[float, float]]:
    """One each two seconds around 100; each deviation keeps a share of the one before."""
    rng, deviation, found = random.Random(5), 0.0, []
    for second in range(0, MINUTES * 60, 2):
        deviation = kept * deviation + rng.gauss(0, noise)
        found.append((float(second), 100 + rise_per_hour * second / 3600 + deviation))
    return found


def test_a_leak_is_found_in_noise_ten_times_as_large_as_its_rise_a_minute() -> None:
    slope = fitted(by_interval(samples(12, noise=2), 60))
    assert slope.per_hour == pytest.approx(12, abs=2 * slope.error)
    assert slope.verdict(6) == Verdict.RISES


@pytest.mark.parametrize("kept", [0.0, 0.9])
def test_noise_alone_does_not_rise(kept: float) -> None:
    slope = fitted(by_interval(samples(0, noise=1, kept=kept), 60))
    assert abs(slope.per_hour) <= 3 * slope.error
    assert slope.verdict(6) == Verdict.FLAT


def test_neighbours_that_share_their_deviation_make_the_slope_less_sure() -> None:
    alone, sharing = (
        fitted(by_interval(samples(0, noise=noise, kept=kept), 60))
        for noise, kept in ((1, 0.0), (1, 0.995))
    )
    assert sharing.error > 3 * alone.error


def test_what_the_error_is_too_large_for_stays_open() -> None:
    slope = fitted(by_interval(samples(0, noise=1, kept=0.999), 60))
    assert slope.error > 1
    assert slope.verdict(slope.per_hour) == Verdict.UNDECIDED


def test_a_figure_that_never_changes_has_a_slope_without_error() -> None:
    slope = fitted([(60.0 * minute, 23.0) for minute in range(20)])
    assert (slope.per_hour, slope.error, slope.verdict(0.5)) == (0, 0, Verdict.FLAT)


def test_a_few_points_are_no_slope() -> None:
    with pytest.raises(ValueError, match="too few"):
        fitted([(60.0 * minute, 23.0) for minute in range(7)])


def test_a_fault_of_some_seconds_does_not_move_its_minute() -> None:
    quiet = [(float(second), 1.0) for second in range(60)]
    disturbed = [(at_s, 50.0 if 10 < at_s < 25 else value) for at_s, value in quiet]
    assert by_interval(disturbed, 60) == by_interval(quiet, 60) == [(29.5, 1.0)]
