"""What a group of logged items does to the order of a shard, in one pass made to be compiled.

Invariant I4. Items are given to the sorter in the order of the log, witnesses among them.
Source: tidb-binlog pump/storage/storage.go and sorter.go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from binlogd.binlog import BinlogType
from binlogd.log.pointer import FileId, ValuePointer
from binlogd.log.record import HEADER_BYTES
from binlogd.pump.log.entry import WITNESS, Entry, Item
from binlogd.pump.shard.sorter import Sorter
from binlogd.pump.shard.window import Window
from binlogd.tso import NO_TS, Tso

_PREWRITE: Final[int] = BinlogType.PREWRITE.value
_COMMIT: Final[int] = BinlogType.COMMIT.value


class Group:
    """Items that are logged together, and what the log has to know of the binlogs among them."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.payloads: list[bytes] = []
        self.size_bytes = 0
        self.max_ts = NO_TS
        """The largest of what counts for the max_ts of a segment."""

    def add(self, items: Sequence[Item]) -> None:
        """Puts them behind the others."""
        for item in items:
            self.items.append(item)
            tp = item.tp
            if tp == WITNESS:
                continue
            payload = item.payload
            self.payloads.append(payload)
            self.size_bytes += len(payload)
            ts = item.start_ts if tp == _PREWRITE else item.commit_ts
            if ts > self.max_ts:
                self.max_ts = ts


class Logged:
    """A group as the index files it, and what is left to do about it; or entries of the log, given
    to a sorter again, which tell again what is late."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []  # of a group
        self.suspects: list[Entry] = []  # commits at or below the watermark
        self.unplaced: list[Entry] = []  # commits whose prewrite the sorter does not know
        self.needed: dict[FileId, Tso] = {}  # by segment, the newest commit of its prewrites
        self.rollbacks = 0
        self.newest_ts = NO_TS  # of entries, what counts for the max_ts of their segment
        self.newest_commit_ts = NO_TS


def below(items: Sequence[Item], sorter: Sorter, window: Window, kept_ts: Tso) -> Tso:
    """The newest commit among items that are not logged yet which comes at or below the watermark
    and above `kept_ts`, and is not known to be a repeated one; NO_TS if there is none."""
    newest, watermark = NO_TS, sorter.watermark
    for item in items:
        commit_ts = item.commit_ts
        if (
            kept_ts < commit_ts <= watermark
            and item.tp == _COMMIT
            and commit_ts > newest
            and not window.has(commit_ts, item.start_ts)
        ):
            newest = commit_ts
    return newest


def sort(
    items: Sequence[Item], first: ValuePointer, sorter: Sorter, window: Window, now_s: float
) -> Logged:
    """Gives items to sorter and window; the first binlog among them stands at `first` in the log,
    the others behind it without gaps."""
    done = Logged()
    entries = done.entries
    fid, offset = first.fid, first.offset
    needed_fid, needed_ts = FileId(-1), NO_TS
    for item in items:
        tp, start_ts, commit_ts = item.tp, item.start_ts, item.commit_ts
        if tp == WITNESS:
            sorter.witness(commit_ts)
            continue
        payload = item.payload
        size = len(payload)
        entries.append(Entry(tp, start_ts, commit_ts, fid, offset, size))
        if tp == _PREWRITE:
            sorter.prewrite(start_ts, (fid, offset, size), now_s)
            window.prewrite(start_ts, payload)
        elif commit_ts == NO_TS:
            sorter.outcome(start_ts, NO_TS)
            window.rollback(start_ts)
            done.rollbacks += 1
        elif start_ts == commit_ts:
            window.commit(commit_ts, start_ts, payload, None)
            sorter.witness(commit_ts)
        else:
            if commit_ts <= sorter.watermark and not window.has(commit_ts, start_ts):
                done.suspects.append(entries[-1])
            spot = sorter.outcome(start_ts, commit_ts)
            if spot is None:
                done.unplaced.append(entries[-1])
            elif spot[0] != needed_fid or commit_ts > needed_ts:  # neighbours are in one segment
                needed_fid, needed_ts = spot[0], max(commit_ts, done.needed.get(spot[0], NO_TS))
                done.needed[needed_fid] = needed_ts
            window.commit(commit_ts, start_ts, payload, spot)
        offset += HEADER_BYTES + size
    return done


def sort_spooled(
    item: Item, first: ValuePointer, size_bytes: int, sorter: Sorter, now_s: float
) -> Logged:
    """`sort` of a prewrite whose payload went into the log without being in memory."""
    done, spot = Logged(), (first.fid, first.offset, size_bytes)
    done.entries.append(Entry(item.tp, item.start_ts, NO_TS, *spot))
    sorter.prewrite(item.start_ts, spot, now_s)
    return done


def sort_again(entries: Sequence[Entry], sorter: Sorter, now_s: float) -> Logged:
    """Gives entries of one segment to the sorter as they were given before."""
    done = Logged()
    needed, prewrite_ts, newest_commit_ts = done.needed, NO_TS, NO_TS
    for entry in entries:
        tp, start_ts, commit_ts = entry.tp, entry.start_ts, entry.commit_ts
        if tp == _PREWRITE:
            prewrite_ts = max(prewrite_ts, start_ts)
            sorter.prewrite(start_ts, (entry.fid, entry.offset, entry.length), now_s)
            continue
        newest_commit_ts = max(newest_commit_ts, commit_ts)
        if start_ts == commit_ts:
            sorter.witness(commit_ts)
        else:
            if commit_ts and commit_ts <= sorter.watermark:
                done.suspects.append(entry)
            spot = sorter.outcome(start_ts, commit_ts)
            if commit_ts and spot is None:
                done.unplaced.append(entry)
            elif commit_ts and spot is not None and commit_ts > needed.get(spot[0], NO_TS):
                needed[spot[0]] = commit_ts
    done.newest_ts = max(prewrite_ts, newest_commit_ts)
    done.newest_commit_ts = newest_commit_ts
    return done
