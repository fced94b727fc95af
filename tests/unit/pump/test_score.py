"""How gladly a Pump takes more, as a number."""

from __future__ import annotations

from binlogd.pump.score import score

GIB = 1 << 30


def of(*, free: int = 100, least: int = 1, log: int = 0, queue: int = 0) -> int:
    return score(
        free_bytes=free * GIB,
        free_bytes_min=least * GIB,
        log_bytes=log * GIB,
        queue_bytes=queue,
        queue_bytes_max=1000,
    )


def test_an_empty_pump_has_the_highest_score() -> None:
    assert of() == 100


def test_one_that_takes_nothing_has_none() -> None:
    assert of(free=1) == 0
    assert of(queue=1000) == 0


def test_one_that_takes_little_still_has_some() -> None:
    assert of(free=2, log=10_000) == 1


def test_less_data_less_load_and_a_larger_disk_are_better() -> None:
    assert of(log=10) > of(log=50)
    assert of(queue=100) > of(queue=500)
    assert of(free=200, log=50) > of(free=100, log=50)
