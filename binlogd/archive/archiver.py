"""Keeps an archive up to date beside a running Pump, and garbage collection from being ahead of it.

Invariant. A segment that is not in the archive is not deleted.
Why it holds. The hold lies below the last timestamp of every segment that the archive has not, from
before the first round on; it moves when a round has said what is there.

The work is done by a child process (worker.py), a few segments at a time: neither reading nor
uploading takes turns with the event loop. Whatever fails is told, counted, and tried again for
ever: the log stays until it is there. What is not sealed goes there by a second child, the one that
follows the log (follower.py), which is asked each second that something new is durable; what it
cannot do is tried again in a process of its own each time, and nothing waits for this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

import msgspec
import structlog

from binlogd.archive.task import FILES_MAX, Archived, Follow, Grown, Keep, Mark, Stand, Task
from binlogd.extras import require
from binlogd.host.child import Ask, answer_of, conversation
from binlogd.host.clock import is_set_within
from binlogd.log.index_file import Segment
from binlogd.log.pointer import ValuePointer
from binlogd.settings.quantities import kept_s
from binlogd.settings.setup import Setup
from binlogd.status import ArchiveStatus
from binlogd.telemetry.exposition import Exposition
from binlogd.telemetry.faults import named
from binlogd.tso import MAX_TS, NO_TS, Tso, physical_ms
from binlogd.upstream.upstream import Upstream

SEGMENTS_AT_ONCE = 16
ROUND_S = 3600.0
KEEP_EVERY_S = 3600.0
"""To look for what is too old takes a listing of the archive."""
ANSWER_BYTES_MAX = 1 << 20
BACKOFF_S_MAX = 300.0
MARKS_KEPT_MAX = 512
_JOB = "binlogd.archive.worker"

log = structlog.get_logger(__name__)

Logs = Callable[[], Sequence[tuple[ValuePointer, Sequence[Segment]]]]
"""By shard: its first prewrite of an open fate, and the segments of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiverOptions:
    """Where to, how often to look for segments that were sealed and for what else is durable (0:
    never), and how long they are kept."""

    data_dir: str
    url: str
    interval_s: float
    tail_interval_s: float = 0.0
    keep: Keep | None = None


class Archiver:
    """`run` is its task."""

    def __init__(
        self,
        options: ArchiverOptions,
        logs: Logs,
        *,
        hold: Callable[[Tso], None],
        refresh: Callable[[], Awaitable[int | None]],
        resolved_ts: Callable[[], Tso] = lambda: NO_TS,
    ) -> None:
        """`hold` keeps binlogs behind a timestamp from being deleted. `refresh` reads the DDL
        history anew into the data directory, and says which cluster it is of. All that commits up
        to `resolved_ts` is in the logs."""
        self._options, self._logs = options, logs
        self._hold, self._refresh = hold, refresh
        self._newest: dict[int, int] | None = None
        self._marks: dict[int, list[Mark]] = {}
        self._segments = self._size_bytes = self._failures = 0
        self._resolved_ts = self._gone_ts = NO_TS
        self._failed, self._not_removed, self._removed = "", "", 0
        self._kept_at_s = -KEEP_EVERY_S
        self._wanted = asyncio.Event()
        self._following: Following | None = None
        if options.tail_interval_s:
            self._following = Following(
                options, resolved_ts=resolved_ts, want_history=self._wanted.set
            )
        hold(NO_TS)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._rounds(), name="archive of sealed segments")
            if self._following is not None:
                group.create_task(self._following.run(self._stands), name="tail of the archive")

    def _stands(self) -> list[Stand] | None:
        if self._newest is None:
            return None
        return stands_of([segments for _, segments in self._logs()], self._newest)

    async def _rounds(self) -> None:
        wait_s = self._options.interval_s
        while True:  # until cancelled, when the node stops
            self._note_marks()
            try:
                is_asked = self._newest is None or self._wanted.is_set()
                if is_asked or self._waiting() or self._keep_due():
                    self._wanted.clear()
                    await self._round()
            except Exception as error:  # noqa: BLE001 - the log stays, whatever it is
                self._failures += 1
                self._failed = str(named("the archiver", error))
                wait_s = min(BACKOFF_S_MAX, wait_s * 2)
                url = self._options.url
                log.warning("archive_failed", url=url, cause=self._failed, wait_s=wait_s)
            else:
                self._failed, wait_s = self._not_removed, self._options.interval_s
            self._hold(self._held())
            if self._failed:
                await asyncio.sleep(wait_s)
            elif not self._waiting():
                await is_set_within(self._wanted, wait_s)

    def status(self) -> ArchiveStatus:
        """How it stands; cheap."""
        tail = self._following
        return ArchiveStatus(
            url=self._options.url,
            segments=self._segments,
            size_bytes=self._size_bytes,
            waiting=self._waiting(),
            failures=self._failures + (tail.failures if tail else 0),
            resolved_ts=max(self._resolved_ts, tail.resolved_ts if tail else NO_TS),
            behind_s=tail.behind_s if tail else None,
            gone_ts=self._gone_ts,
            removed=self._removed,
            failed=self._failed or (tail.failed if tail else ""),
        )

    def say(self, out: Exposition) -> None:
        """Its metrics."""
        now = self.status()
        out.counter("binlogd_archive_segments", "Archived by this process.", now.segments)
        out.counter("binlogd_archive_bytes", "Archived by this process.", now.size_bytes)
        out.counter(
            "binlogd_archive_failures", "Rounds that failed; each is tried again.", now.failures
        )
        out.gauge("binlogd_archive_segments_waiting", "Sealed, and not archived yet.", now.waiting)
        if now.behind_s is not None:
            out.gauge(
                "binlogd_archive_behind_seconds",
                "Since the archive had all that was durable.",
                now.behind_s,
            )
        out.gauge("binlogd_archive_failed", "1 while rounds fail.", int(bool(now.failed)))
        out.gauge(
            "binlogd_archive_resolved_ts",
            "Physical ms up to which the archive is complete.",
            physical_ms(now.resolved_ts),
        )
        out.gauge(
            "binlogd_archive_gone_ts",
            "Physical ms from which on the archive can be read; 0: from its beginning.",
            physical_ms(now.gone_ts),
        )
        out.counter(
            "binlogd_archive_removed", "Files that retention removed (archive.keep).", now.removed
        )

    async def _round(self) -> None:
        task = Task(
            data_dir=self._options.data_dir,
            url=self._options.url,
            cluster_id=await self._refresh(),
            segments_max=SEGMENTS_AT_ONCE,
            marks=self._marks,
            keep=self._options.keep if self._keep_due() else None,
        )
        answer = await answer_of(
            _JOB,
            msgspec.json.encode(task),
            timeout_s=ROUND_S,
            answer_bytes_max=ANSWER_BYTES_MAX,
        )
        archived = msgspec.json.decode(answer, type=Archived)
        self._newest = archived.newest
        self._segments += archived.segments
        self._size_bytes += archived.size_bytes
        self._resolved_ts, self._gone_ts = Tso(archived.resolved_ts), Tso(archived.gone_ts)
        if task.keep is not None:
            self._note_kept(archived)
        for shard, marks in self._marks.items():
            done = archived.newest.get(shard, -1)
            self._marks[shard] = [mark for mark in marks if mark.newest > done]
        if archived.segments:
            log.info(
                "segments_archived",
                url=self._options.url,
                segments=archived.segments,
                size_bytes=archived.size_bytes,
                transactions=archived.transactions,
                resolved_ts=archived.resolved_ts,
                left=archived.left,
            )

    def _keep_due(self) -> bool:
        now_s = asyncio.get_running_loop().time()
        return self._options.keep is not None and now_s - self._kept_at_s >= KEEP_EVERY_S

    def _note_kept(self, archived: Archived) -> None:
        self._kept_at_s = asyncio.get_running_loop().time()
        self._not_removed, removed = archived.not_removed, archived.removed
        if removed is None:
            log.warning("archive_not_cut", url=self._options.url, cause=self._not_removed)
            return
        self._removed += removed.files
        if removed.files or removed.leaving or removed.held:
            log.info("archive_kept", url=self._options.url, **msgspec.structs.asdict(removed))

    def _note_marks(self) -> None:
        """One for each segment is enough: the last one that stood before it was sealed."""
        for shard, (undecided, segments) in enumerate(self._logs()):
            marks = self._marks.setdefault(shard, [])
            newest = segments[-1].fid if segments else 0
            if marks and marks[-1].newest == newest:
                marks.pop()
            marks.append(Mark(newest, *undecided))
            del marks[:-MARKS_KEPT_MAX]

    def _missing(self) -> list[Segment]:
        newest = self._newest or {}
        return [
            segment
            for shard, (_, segments) in enumerate(self._logs())
            for segment in segments
            if segment.fid > newest.get(shard, -1)
        ]

    def _waiting(self) -> int:
        return sum(segment.is_sealed for segment in self._missing())

    def _held(self) -> Tso:
        """Just below what any segment needs that is not in the archive."""
        if self._newest is None:
            return NO_TS
        return Tso(min((each.gone_ts for each in self._missing()), default=MAX_TS) - 1)


HOLD = "archive"
"""As whom it keeps binlogs from being deleted."""


def archiving(
    setup: Setup,
    upstream: Upstream,
    logs: Logs,
    hold: Callable[[Tso], None],
    resolved_ts: Callable[[], Tso],
) -> Archiver:
    """What is to be run where there is an archive: nothing is deleted that is not in it.

    Raises ConfigError.
    """
    require("archive", "pyarrow")

    async def refresh() -> int | None:
        await upstream.history.known_jobs()
        return upstream.cluster.cluster_id

    of = setup.config.archive
    keep = Keep(keep_s=kept_s("archive.keep", of.keep), base=of.base, files_max=FILES_MAX)
    options = ArchiverOptions(
        data_dir=str(setup.data_dir),
        url=of.url,
        interval_s=of.interval,
        tail_interval_s=of.tail_interval,
        keep=keep if keep.keep_s else None,
    )
    return Archiver(options, logs, hold=hold, refresh=refresh, resolved_ts=resolved_ts)


# --- what is not sealed --------------------------------------------------------------------------

ANSWER_S = 600.0
FOLLOWER_BYTES_MAX = 1 << 16
FOLLOWER_BACKOFF_S_MAX = 60.0
AHEAD_MAX = 4
"""So many sealed segments of a shard may wait for the archiver; with more, that comes first."""
HISTORY_EVERY_S = 5.0
"""A job that is not over yet is asked for so often."""
_FOLLOWER = "binlogd.archive.follower"


class Following:
    """`run` is its task. `behind_s` says how old the newest state is that the archive has."""

    def __init__(
        self,
        options: ArchiverOptions,
        *,
        resolved_ts: Callable[[], Tso],
        want_history: Callable[[], None],
    ) -> None:
        """`want_history` is called when the archive's DDL history lacks a job."""
        self._options = options
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
        wait_s = self._options.tail_interval_s
        while True:  # until cancelled, when the node stops
            try:
                async with conversation(_FOLLOWER, answer_bytes_max=FOLLOWER_BYTES_MAX) as ask:
                    while True:  # until it fails
                        await self._round(stands(), ask)
                        self.failed, wait_s = "", self._options.tail_interval_s
                        await asyncio.sleep(wait_s)
            except Exception as error:  # noqa: BLE001 - the log stays, whatever it is
                self.failures += 1
                self.failed = str(named("what follows the log", error))
                wait_s = min(FOLLOWER_BACKOFF_S_MAX, wait_s * 2)
                url = self._options.url
                log.warning("archive_behind", url=url, cause=self.failed, wait_s=wait_s)
            await asyncio.sleep(wait_s)

    async def _round(self, stands: Sequence[Stand] | None, ask: Ask) -> None:
        if stands is None or any(len(each.segments) > AHEAD_MAX + 1 for each in stands):
            return
        question = Follow(
            data_dir=self._options.data_dir,
            url=self._options.url,
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
