"""A wake-up for everyone who waits for "something changed", and for who waits for an end."""

from __future__ import annotations

import asyncio


class Signal:
    """Take `next` first, look at the state, then wait: no change in between is missed."""

    def __init__(self) -> None:
        self._next: asyncio.Event | None = None  # made for who waits: most changes nobody waits for

    @property
    def next(self) -> asyncio.Event:
        """Set by the next `fire`."""
        if self._next is None:
            self._next = asyncio.Event()
        return self._next

    def fire(self) -> None:
        """Wakes all who wait."""
        fired, self._next = self._next, None
        if fired is not None:
            fired.set()


def end(done: asyncio.Future[None], error: BaseException | None = None) -> None:
    """Ends a future, with an error if there is one. Whoever waited for it may have given up."""
    if not done.done():
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)
