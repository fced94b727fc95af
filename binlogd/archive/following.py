"""Asks the process that follows the log, each second that something new is durable.

What it cannot do is told and tried again, in a process of its own each time; the sealed segments go
into the archive by themselves, and nothing waits for this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile

import msgspec
import structlog

from binlogd.archive.task import Follow, Grown, Stand
from binlogd.host.child import Ask, conversation
from binlogd.log.index_file import Segment
from binlogd.telemetry.faults import named
from binlogd.tso import NO_TS, Tso

ANSWER_S = 600.0
ANSWER_BYTES_MAX = 1 << 16
BACKOFF_S_MAX = 60.0
AHEAD_MAX = 4
"""So many sealed segments of a shard may wait for the archiver; with more, that comes first."""
HISTORY_EVERY_S = 5.0
"""A job that is not over yet is asked for so often."""
_JOB = "binlogd.archive.follower"

log = structlog.get_logger(__name__)


class Following:
    """`run` is its task. `behind_s` says how old the newest state is that the archive has."""

    def __init__(
        self,
        data_dir: str,
        url: str,
        interval_s: float,
        *,
        resolved_ts: Callable[[], Tso],
        want_history: Callable[[], None],
    ) -> None:
        """`want_history` is called when the archive's DDL history lacks a job."""
        self._data_dir, self._url, self._interval_s = data_dir, url, interval_s
        self._resolved_ts, self._want_history = resolved_ts, want_history
        self._published: Follow | None = None
        self._published_at_s = asyncio.get_running_loop().time()
        self._wanted_at_s = -HISTORY_EVERY_S
        self.failed, self.failures = "", 0

    @property
    def behind_s(self) -> float:
        """Seconds since the archive had everything that was durable."""
        return asyncio.get_running_loop().time() - self._published_at_s

    @property
    def resolved_ts(self) -> Tso:
        """Up to where the archive has all, as far as this process knows."""
        return NO_TS if self._published is None else Tso(self._published.resolved_ts)

    async def run(self, stands: Callable[[], Sequence[Stand] | None]) -> None:
        """Until cancelled. `stands` is None while nobody knows what is archived."""
        wait_s = self._interval_s
        while True:  # until cancelled, when the node stops
            try:
                async with conversation(_JOB, answer_bytes_max=ANSWER_BYTES_MAX) as ask:
                    while True:  # until it fails
                        await self._round(stands(), ask)
                        self.failed, wait_s = "", self._interval_s
                        await asyncio.sleep(wait_s)
            except Exception as error:  # noqa: BLE001 - the log stays, whatever it is
                self.failures += 1
                self.failed = str(named("what follows the log", error))
                wait_s = min(BACKOFF_S_MAX, wait_s * 2)
                log.warning("archive_behind", url=self._url, cause=self.failed, wait_s=wait_s)
            await asyncio.sleep(wait_s)

    async def _round(self, stands: Sequence[Stand] | None, ask: Ask) -> None:
        if stands is None or any(len(each.segments) > AHEAD_MAX + 1 for each in stands):
            return
        question = Follow(
            data_dir=self._data_dir,
            url=self._url,
            resolved_ts=self._resolved_ts(),
            shards=tuple(stands),
        )
        begun_s = asyncio.get_running_loop().time()
        if question != self._published:
            answer = await ask(msgspec.json.encode(question), ANSWER_S)
            if not msgspec.json.decode(answer, type=bool):
                if begun_s - self._wanted_at_s >= HISTORY_EVERY_S:
                    self._wanted_at_s = begun_s
                    self._want_history()
                return
        self._published, self._published_at_s = question, begun_s


def stands_of(logs: Sequence[Sequence[Segment]], archived: Mapping[int, int]) -> list[Stand]:
    """By shard what lies behind the last segment that is archived."""
    return [
        Stand(fid, _behind(segments, fid))
        for shard, segments in enumerate(logs)
        for fid in (archived.get(shard, -1),)
    ]


def _behind(segments: Sequence[Segment], fid: int) -> tuple[Grown, ...]:
    newest = takewhile(lambda each: each.fid > fid, reversed(segments))
    found = [Grown(each.fid, each.size_bytes, each.is_sealed) for each in newest]
    return tuple(reversed(found))
