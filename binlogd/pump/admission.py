"""Whether a Pump takes a binlog, and as what.

Source: tidb-binlog pump/server.go, writeBinlog; pump/storage/storage.go, WriteBinlog.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from binlogd.binlog import BinlogType
from binlogd.errors import (
    BinlogdError,
    DiskFull,
    FromTheFuture,
    MalformedBinlog,
    NotOnline,
    RecordTooLarge,
    Unavailable,
)
from binlogd.pump.log.entry import ITEM_BYTES, Item
from binlogd.pump.state import NodeState
from binlogd.tso import NO_TS, Tso, compose, physical_ms
from binlogd.wire.peek import head_and_canonical, plain_numbers

END_OF_TIME = compose(1 << 43)  # far enough below 2^63 for a time source to go on from there
_PREWRITE: Final[int] = BinlogType.PREWRITE.value
_COMMIT: Final[int] = BinlogType.COMMIT.value


class Admitted:
    """What becomes of a batch: items, where they stood in it, and the outcome of each binlog as far
    as it is known (None: taken, or a probe of a Pump that takes)."""

    def __init__(self, count: int) -> None:
        self.items: list[Item] = []
        self.positions: list[int] = []
        self.outcomes: list[BinlogdError | None] = [None] * count
        self.refused = 0
        self.bytes_held = 0
        """What the items take from the budget."""
        self.newest_ts = NO_TS

    def add(self, position: int, item: Item, newest_ts: Tso, size: int) -> None:
        """One that is taken, with its largest timestamp and the bytes of its payload."""
        self.items.append(item)
        self.positions.append(position)
        self.bytes_held += size + ITEM_BYTES
        if newest_ts > self.newest_ts:
            self.newest_ts = newest_ts


class Admission:
    """The state of a Pump, its room, and the rule that follows from them."""

    def __init__(
        self, *, state: NodeState, free_bytes: int, free_bytes_min: int, record_bytes_max: int
    ) -> None:
        self.state = state
        self.free_bytes = free_bytes
        self.free_bytes_min = free_bytes_min
        self.lacks = ""  # why there is no space, where no disk is full
        self.record_bytes_max = record_bytes_max
        self.horizon = END_OF_TIME
        """Every timestamp lies below: one that is far ahead of all clocks would move watermarks
        there, and every commit after it would come too late."""
        self.from_the_future = 0

    @property
    def has_space(self) -> bool:
        """Whether more than the reserve is free."""
        return self.free_bytes > self.free_bytes_min

    def no_space(self, coming_bytes: int = 0) -> Unavailable:
        """What is refused for want of space hears this; `coming_bytes` as of DiskFull."""
        if self.lacks:
            return Unavailable(self.lacks)
        return DiskFull(self.free_bytes, self.free_bytes_min, coming_bytes)

    def admit(self, payloads: Sequence[bytes]) -> Admitted:
        """`item` of each, in order; an error in one does not touch the others. Hot."""
        takes_prewrites = self.state.takes_prewrites
        has_space, bytes_max, horizon = self.has_space, self.record_bytes_max, self.horizon
        admitted = Admitted(len(payloads))
        for position, payload in enumerate(payloads):
            numbers, size = plain_numbers(payload), len(payload)
            if numbers is not None and has_space and size <= bytes_max:
                tp, start_ts, commit_ts = numbers
                if not 0 < start_ts < horizon:
                    pass
                elif tp == _PREWRITE and takes_prewrites and 0 <= commit_ts < horizon:
                    item = Item(tp, Tso(start_ts), NO_TS, payload)
                    admitted.add(position, item, Tso(start_ts), size)
                    continue
                elif tp == _COMMIT and start_ts < commit_ts < horizon:
                    item = Item(tp, Tso(start_ts), Tso(commit_ts), payload)
                    admitted.add(position, item, Tso(commit_ts), size)
                    continue
            try:
                taken = self.item(payload)
            except BinlogdError as error:
                admitted.outcomes[position] = error
                admitted.refused += 1
                continue
            if taken is not None:
                newest_ts = max(taken.start_ts, taken.commit_ts)
                admitted.add(position, taken, newest_ts, len(taken.payload))
        return admitted

    def item(self, payload: bytes) -> Item | None:
        """The item of a payload, in canonical bytes; None for a probe.

        Outcomes are taken in every state, fakes even without space. Raises MalformedBinlog,
        NotOnline, Unavailable, DiskFull, RecordTooLarge or FromTheFuture.
        """
        (tp, start_ts, commit_ts, _), payload = head_and_canonical(payload)
        is_fake = tp == BinlogType.ROLLBACK and start_ts == commit_ts > 0
        if tp == BinlogType.PREWRITE and not self.state.takes_prewrites:
            raise NotOnline(self.state.value)
        if not self.has_space and not is_fake:
            raise self.no_space()
        if start_ts == commit_ts == 0:
            return None
        if len(payload) > self.record_bytes_max:
            raise RecordTooLarge(len(payload), self.record_bytes_max)
        if max(start_ts, commit_ts) >= END_OF_TIME:
            raise MalformedBinlog(
                f"a timestamp cannot lie beyond the year 2248: start_ts {start_ts}, commit_ts"
                f" {commit_ts}"
            )
        if max(start_ts, commit_ts) >= self.horizon:
            self.from_the_future += 1
            raise FromTheFuture(start_ts, commit_ts, physical_ms(self.horizon))
        if tp == BinlogType.PREWRITE and start_ts > 0:
            return Item(tp, Tso(start_ts), NO_TS, payload)
        if tp == BinlogType.COMMIT and commit_ts > start_ts > 0:
            return Item(tp, Tso(start_ts), Tso(commit_ts), payload)
        if tp == BinlogType.ROLLBACK and start_ts > 0:
            return Item(tp, Tso(start_ts), Tso(commit_ts) if is_fake else NO_TS, payload)
        raise MalformedBinlog(
            f"a binlog of type {tp} cannot have start_ts {start_ts} and commit_ts {commit_ts}"
        )
