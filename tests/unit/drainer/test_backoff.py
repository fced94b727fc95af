"""How long to wait before the next attempt."""

from __future__ import annotations

from random import Random

from binlogd.drainer.backoff import Backoff


def test_waits_double_up_to_the_limit_and_begin_anew_after_success() -> None:
    backoff = Backoff(Random(7), first_s=1.0, max_s=10.0)
    waits = [backoff.next_s() for _ in range(100)]
    for wait_s, full_s in zip(waits, [1, 2, 4, 8, *[10] * 96], strict=True):
        assert 0.75 * full_s <= wait_s <= full_s
    assert backoff.attempts == 100
    backoff.reset()
    assert backoff.next_s() <= 1.0
