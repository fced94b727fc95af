"""Looking again and again in a command that has no event loop, and needs none to wait."""

from __future__ import annotations

import time
from collections.abc import Iterator


def again_within(wait_s: float, every_s: float) -> Iterator[None]:
    """Once at least, then again after each `every_s` until `wait_s` are over."""
    until_s = time.monotonic() + wait_s
    yield
    while time.monotonic() < until_s:
        time.sleep(every_s)
        yield
