"""How it stands, once a second: remembered for the minutes of a picture, told to listeners."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from binlogd.node.problems import problems
from binlogd.node.samples import EVERY_S, Counts, Sample, SampleHistory
from binlogd.ports import Clock
from binlogd.serving.routes.events import Hub, event
from binlogd.status import OwnStatus, document
from binlogd.upstream.store import SkipEntry

_EXACT_MAX = (1 << 53) - 1
"""What a browser's number holds without rounding; timestamps are larger."""


class Watch:
    """`run` it beside the node; `hub` is who listens."""

    def __init__(
        self,
        status: Callable[[], OwnStatus],
        counts: Callable[[], Counts],
        skips: Callable[[], Sequence[SkipEntry]],
        clock: Clock,
    ) -> None:
        """What is looked at: how this process stands, its counters, and what was skipped by
        decision."""
        self._status, self._counts, self._skips, self._clock = status, counts, skips, clock
        self._history = SampleHistory()
        self.hub = Hub(self._opening)

    async def run(self) -> None:
        """Until cancelled; then everybody who listens is let go."""
        try:
            while True:
                status = self._status()
                sample = self._history.take(self._clock.wall_ms(), status.lag_s, self._counts())
                if self.hub.listeners:
                    self.hub.publish(self._now(status, sample))
                await asyncio.sleep(EVERY_S)
        except asyncio.CancelledError:
            self.hub.close()
            raise

    def _opening(self) -> bytes:
        samples = self._history.samples()
        past = msgspec.json.encode(
            {"every_s": EVERY_S, "samples": samples, "minutes": self._history.minutes()}
        )
        status = self._status()
        return event("past", past) + self._now(status, samples[-1] if samples else None)

    def _now(self, status: OwnStatus, sample: Sample | None) -> bytes:
        now = {
            "at_ms": self._clock.wall_ms(),
            "sample": sample,
            "minute": next(reversed(self._history.minutes()), None),
            "status": _exact(document(status)),
            "problems": problems(status),
            "skips": _exact(msgspec.to_builtins(self._skips())),
        }
        return event("now", msgspec.json.encode(now))


def _exact(value: Any) -> Any:
    """The same, with numbers that a browser would round as text."""
    if isinstance(value, int) and not -_EXACT_MAX <= value <= _EXACT_MAX:
        return str(value)
    if isinstance(value, Mapping):
        return {name: _exact(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_exact(each) for each in value]
    return value
