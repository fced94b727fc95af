"""How long to wait before the next attempt: longer each time, up to a limit, never exactly.

There is a limit on the wait, none on the number of attempts: a downstream that comes back after a
night is served.
"""

from __future__ import annotations

from random import Random


class Backoff:
    """Waits of first_s, twice that, and so on up to max_s, each shortened by up to a quarter."""

    def __init__(self, rng: Random, *, first_s: float = 0.25, max_s: float = 30.0) -> None:
        self._rng, self._first_s, self._max_s = rng, first_s, max_s
        self.attempts = 0
        """Failed in a row."""

    def next_s(self) -> float:
        """The wait before the next attempt, in seconds."""
        wait_s = min(self._max_s, self._first_s * 2.0 ** min(self.attempts, 60))
        self.attempts += 1
        return wait_s * (1 - self._rng.random() / 4)

    def reset(self) -> None:
        """An attempt succeeded."""
        self.attempts = 0
