"""The wall clock behind `ports.Clock`."""

from __future__ import annotations

import time


class WallClock:
    """The clock of this machine. Used for ages only; order comes from timestamps."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000
