"""The wall clock behind `ports.Clock`, and a wait that ends in time."""

from __future__ import annotations

import asyncio
import time


class WallClock:
    """The clock of this machine. Used for ages only; order comes from timestamps."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000


async def is_set_within(event: asyncio.Event, seconds: float) -> bool:
    """Waits at most `seconds`; whether the event is set then."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return event.is_set()
    return True
