"""Several shards behind one door: routing, witnesses, fake binlogs, space, age and state.

Invariant I3. A transaction stays in its shard: the shard count is written into the data directory.
The watermark of all is the smallest of any; witnesses (`route.py`) keep an idle shard from holding
it back, which is why a batch is routed and queued without waiting in between.

Source: tidb-binlog pump/server.go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import structlog

from binlogd.binlog import BinlogType
from binlogd.errors import BinlogdError, LogFailed, NotOnline, RecordTooLarge, Unavailable
from binlogd.host.clock import is_set_within
from binlogd.host.disk import disk_errors
from binlogd.log.directory import LOCK_FILE, pump_directory, shard_name
from binlogd.log.index_file import Segment
from binlogd.log.pointer import ValuePointer
from binlogd.ports import BinlogSource, Clock, Disk, DiskLock, Space, TsoSource, TxnStatusSource
from binlogd.pump.admission import END_OF_TIME, Admission, Admitted
from binlogd.pump.bases import Bases
from binlogd.pump.budget import Budget
from binlogd.pump.caretaker import Caretaker, CaretakerStatistics
from binlogd.pump.kept_routing import routing_of
from binlogd.pump.late_commits import LateCommits, LateWatch
from binlogd.pump.log.entry import ITEM_BYTES, Item
from binlogd.pump.log.valuelog import LogLimits
from binlogd.pump.resolver import Resolver, ResolverStatistics
from binlogd.pump.route import Router, Routing, Share
from binlogd.pump.shard.options import FilingOptions, PullOptions, ShardOptions
from binlogd.pump.shard.pull import ShardSource
from binlogd.pump.shard.rounds import Rounds
from binlogd.pump.shard.shard import Shard
from binlogd.pump.shard.statistics import ShardStatistics, statistics_of
from binlogd.pump.signal import end
from binlogd.pump.slow import SlowWrites
from binlogd.pump.spools import Spools
from binlogd.pump.state import Action, NodeState, asked, given_up, settled
from binlogd.telemetry.faults import answer_of
from binlogd.tso import NO_TS, Tso, compose, physical_ms
from binlogd.wire.binlogs import fake

log = structlog.get_logger(__name__)

_SETTLE_RETRY_S = 1.0
_SHARDS_FEW = 4
_TELL_AFTER_S = 0.0001  # for each shard more: a witness for each costs 10 microseconds
_FILE_EVERY_S = 0.1  # for few shards: as many transactions of SQLite a second with many


@dataclass(frozen=True, slots=True, kw_only=True)
class PumpOptions:
    """Every limit and interval of a Pump, with its default. Sizes in bytes, times in seconds."""

    gc_keep_s: float = 7 * 86_400.0
    gc_every_s: float = 3_600.0
    fake_interval_s: float = 3.0
    free_bytes_min: int = 1 << 30
    free_check_every_s: float = 3.0
    record_bytes_max: int = 1 << 30
    segment_bytes_max: int = 500 << 20
    group_bytes_max: int = 8 << 20
    memory_budget_bytes: int = 2 << 30
    index_queue_max: int = 65_536
    window_bytes_max: int = 16 << 20
    slow_chaser_after_s: float = 3.0
    resolve_after_s: float = 1.0
    resolve_batch_max: int = 256
    pull_commits_max: int = 1_024
    pull_bytes_max: int = 4 << 20
    ahead_max_s: float = 600.0
    skip_orphan_commits: bool = False
    slow: SlowWrites | None = None
    """Whom writes are told; None: nobody."""


class PumpStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """How a Pump stands. `blocked_by` says in words what holds the watermark, "" if nothing does,
    and `blocked_s` for how long; `refuses_because` why prewrites are refused now, "" if they are
    taken."""

    state: NodeState
    max_commit_ts: Tso
    newest_commit_ts: Tso
    accepted: int
    refused: int
    from_the_future: int
    fakes: int
    write_queue_bytes: int
    write_queue_bytes_max: int
    spooled_bytes_coming: int
    free_bytes: int
    free_bytes_min: int
    gc: CaretakerStatistics
    refuses_because: str
    blocked_by: str
    blocked_s: float
    shards: tuple[ShardStatistics, ...]
    resolvers: tuple[ResolverStatistics, ...]


class Pump:
    """`open` it, let `run` run, `write` and pull, `close` it."""

    def __init__(  # noqa: PLR0913 - as `open`, and what that has found
        self,
        directory: Path,
        shards: Sequence[Shard],
        routing: Routing,
        lock: DiskLock | None,
        space: Space,
        *,
        tso: TsoSource,
        txn_status: TxnStatusSource,
        clock: Clock,
        disk: Disk,
        options: PumpOptions,
    ) -> None:
        self._shards = list(shards)
        self.late = LateCommits(self._shards)
        self._lock, self._routing = lock, routing
        self._tso, self._clock = tso, clock
        self._options = options
        self._admission = Admission(
            state=NodeState.ONLINE,
            free_bytes=space.free_bytes,
            free_bytes_min=options.free_bytes_min,
            record_bytes_max=options.record_bytes_max,
        )
        self.caretaker = Caretaker(
            directory,
            self._shards,
            self._admission,
            space,
            clock=clock,
            disk=disk,
            keep_s=options.gc_keep_s,
            every_s=options.gc_every_s,
            space_every_s=options.free_check_every_s,
        )
        """Who needs which binlogs is said to it, and it lets go of the others."""
        self._router = Router(routing, high=max(shard.max_seen_ts for shard in shards))
        self._budget = Budget(bytes_max=options.memory_budget_bytes // 2)
        self._reading = Budget(bytes_max=options.memory_budget_bytes // 2)
        self.spools = Spools(
            self._shards,
            routing,
            self._admission,
            tso,
            self._look_ahead,
            self.caretaker.look_at_space,
        )
        """Large Prewrites are written by it."""
        self._ahead_max_ms = int(options.ahead_max_s * 1000)
        self._accepted = self._refused = self._fakes = 0
        self._is_running = self._is_telling = False
        self._tell_after_s = _TELL_AFTER_S * max(0, len(shards) - _SHARDS_FEW)
        self._stopping = asyncio.Event()
        self._stopped = asyncio.Event()
        self._closed = asyncio.Event()
        self._resolvers = [
            Resolver(
                shard,
                txn_status,
                self.write,
                after_s=options.resolve_after_s,
                most=options.resolve_batch_max,
            )
            for shard in shards
        ]

    # --- life --------------------------------------------------------------------------------

    @classmethod
    async def open(  # noqa: PLR0913 - what it needs of the world, each by its name
        cls,
        directory: Path,
        *,
        shards: int,
        tso: TsoSource,
        txn_status: TxnStatusSource,
        clock: Clock,
        disk: Disk,
        options: PumpOptions,
        is_locked: bool = False,
    ) -> Pump:
        """Locks the directory, unless the caller has done so, and recovers all shards in it.

        Raises ConfigError when another process or another shard count has it, CorruptRecord when
        acknowledged bytes are damaged, LogFailed, DiskFull or IndexUnavailable.
        """
        with disk_errors(directory):
            await disk.make_directory(pump_directory(directory))
            lock = None if is_locked else await disk.lock(directory / LOCK_FILE)
        opened, rounds = list[Shard](), Rounds()
        try:
            await Bases(directory, disk).declared()  # one that does not read would stop all GC
            routing = await routing_of(pump_directory(directory), shards, disk)
            space = await disk.space(directory)
            for name in map(shard_name, range(shards)):
                opened.append(
                    await Shard.open(
                        pump_directory(directory) / name,
                        name=name,
                        disk=disk,
                        options=_shard_options(
                            options, shards, believes_rollbacks=not txn_status.verifies_rollbacks
                        ),
                        now_s=asyncio.get_running_loop().time(),
                        rounds=rounds,
                    )
                )
        except BaseException as error:
            for shard in opened:
                await shard.close()
            if lock is not None:
                await lock.release()
            if isinstance(error, OSError):
                raise LogFailed(directory, error) from error
            raise
        pump = cls(
            directory,
            opened,
            routing,
            lock,
            space,
            tso=tso,
            txn_status=txn_status,
            clock=clock,
            disk=disk,
            options=options,
        )
        pump._begin()
        return pump

    async def run(self) -> None:
        """Owns every task of the Pump until `close`. Raises Corrupt or LogFailed, in a group, when
        a shard cannot go on."""
        if self._stopping.is_set():
            return  # closed before it began
        self._is_running = True
        try:
            async with asyncio.TaskGroup() as group:
                for shard in self._shards:
                    group.create_task(shard.run(), name=shard.name)
                asking = [group.create_task(resolver.run()) for resolver in self._resolvers]
                group.create_task(self._stop_asking(asking), name="end of questions")
                group.create_task(self._fake_loop(), name="fake binlogs")
                group.create_task(self.caretaker.run(self._stopping), name="garbage collection")
                group.create_task(self.caretaker.watch_space(self._stopping), name="free space")
        finally:
            self._stopped.set()

    async def close(self) -> None:
        """Writes and files what is queued, saves the marks, gives up the lock that it took.

        Binlogs that come later are refused; who closes again waits for the first. Raises LogFailed
        or DiskFull when a segment could not be sealed; nothing acknowledged is lost by that.
        """
        if self._stopping.is_set():
            await self._closed.wait()
            return
        self._stopping.set()
        try:
            await self._close()
        finally:
            self._closed.set()

    # --- writing -----------------------------------------------------------------------------

    async def write(self, payloads: Sequence[bytes]) -> Sequence[BinlogdError | None]:
        """Takes serialised binlogs; returns when each is durable, or why it was refused.

        Empty payloads and those without timestamps are probes, and only tell whether writing is
        possible. An error in one binlog does not touch the others.
        """
        admitted = self._admitted(payloads)
        if admitted.items:
            await self._write(admitted)
        return admitted.outcomes

    def write_now(
        self, payloads: Sequence[bytes], ended: Callable[[Sequence[BinlogdError | None]], None]
    ) -> bool:
        """`write` that tells `ended` what it would return, in the turn of the loop in which that is
        known. False if there is no room: nothing was done."""
        if not self._budget.has_room(sum(map(len, payloads)) + ITEM_BYTES * len(payloads)):
            return False
        admitted = self._admitted(payloads)
        self._tso.observe(admitted.newest_ts)
        self._budget.add(admitted.bytes_held)
        self._put(admitted, partial(ended, admitted.outcomes))
        return True

    @property
    def max_commit_ts(self) -> Tso:
        """Every transaction with commit_ts up to here is durable and can be pulled."""
        return min(shard.watermark for shard in self._shards)

    @property
    def newest_commit_ts(self) -> Tso:
        """The largest commit_ts that has arrived; `max_commit_ts` reaches it in a moment."""
        return self._router.high

    # --- reading -----------------------------------------------------------------------------

    def sources(self) -> Sequence[BinlogSource]:
        """One for each shard."""
        options = PullOptions(
            commits_max=self._options.pull_commits_max,
            bytes_max=self._options.pull_bytes_max,
            skip_orphans=self._options.skip_orphan_commits,
        )
        return [ShardSource(shard, options, self._reading) for shard in self._shards]

    def watch_late(self) -> LateWatch:
        """For who pulls, beside `sources`."""
        return LateWatch(self._shards)

    async def read_binlog(self, ts: Tso, *, bytes_max: int | None = None) -> bytes | None:
        """The binlog filed under a timestamp as it was written: the commit, or else the prewrite.

        Raises RecordTooLarge above `bytes_max`, Corrupt or Unavailable.
        """
        for shard in self._shards:
            await shard.filer.caught_up()
            commits = await shard.index.commits_after(Tso(ts - 1), upto=ts, limit=2)
            real = [commit for commit in commits if commit.start_ts != ts] or commits
            place = real[0].place if real else (await shard.index.prewrites([ts])).get(ts)
            if place is not None:
                if bytes_max is not None and place[2] > bytes_max:
                    raise RecordTooLarge(place[2], bytes_max)
                return (await shard.log.segments.read([place]))[0]
        return None

    def logs(self) -> Sequence[tuple[ValuePointer, Sequence[Segment]]]:
        """By shard, its first prewrite of an open fate, and the segments of its log, in order."""
        return [(shard.undecided, list(shard.log.segments)) for shard in self._shards]

    # --- state -------------------------------------------------------------------------------

    @property
    def state(self) -> NodeState:
        """Where it is in its life."""
        return self._admission.state

    def request(self, action: Action) -> None:
        """Pause or close, as an operator asks: prewrites are refused from now on, outcomes are
        not. Raises Refused unless online."""
        self._admission.state = asked(self._admission.state, action)
        log.info("state_changed", state=self._admission.state.value)

    async def settle(self) -> Tso:
        """Waits until every transaction here has its outcome and can be pulled; returns the
        watermark that whoever has pulled it all has reached.

        Writes a fake binlog so that the watermark passes all of them, and once more a second later
        when that fails. Never ends by itself while an outcome is missing: `statistics` says whose.
        """
        ts = await self._settling_fake()
        await self._all_logged()
        for shard in self._shards:
            while shard.watermark < ts or shard.sorter.open_count:  # ends when all have outcomes
                await shard.changed.next.wait()
        return self.max_commit_ts

    def give_up_closing(self) -> None:
        """It ends as paused after all: somebody still needs what is here."""
        self._admission.state = given_up(self._admission.state)
        log.info("state_changed", state=self._admission.state.value)

    # --- looking -----------------------------------------------------------------------------

    def statistics(self) -> PumpStatistics:
        """How it stands; cheap."""
        shards = tuple(map(statistics_of, self._shards))
        resolvers = tuple(resolver.statistics() for resolver in self._resolvers)
        blocked_by, blocked_s = _blocked(shards, resolvers)
        return PumpStatistics(
            state=self._admission.state,
            max_commit_ts=self.max_commit_ts,
            newest_commit_ts=self.newest_commit_ts,
            accepted=self._accepted + self.spools.accepted,
            refused=self._refused + self.spools.refused,
            from_the_future=self._admission.from_the_future,
            fakes=self._fakes,
            write_queue_bytes=self._budget.size,
            write_queue_bytes_max=self._options.memory_budget_bytes // 2,
            spooled_bytes_coming=self.spools.bytes_coming,
            free_bytes=self._admission.free_bytes,
            free_bytes_min=self._options.free_bytes_min,
            gc=self.caretaker.statistics(),
            refuses_because=self.caretaker.refusal()
            if self.state.takes_prewrites
            else f"the node is {self.state.value}",
            blocked_by=blocked_by,
            blocked_s=blocked_s,
            shards=shards,
            resolvers=resolvers,
        )

    # --- inside ------------------------------------------------------------------------------

    async def _stop_asking(self, asking: Sequence[asyncio.Task[None]]) -> None:
        await self._stopping.wait()
        for each in asking:
            each.cancel()

    async def _close(self) -> None:
        self.caretaker.wake()
        for shard in self._shards:
            shard.stop()
        if self._is_running:
            await self._stopped.wait()
        failures: list[BinlogdError] = []
        for shard in self._shards:
            try:
                await shard.close()
            except BinlogdError as error:  # the others are closed all the same
                failures.append(error)
        if self._lock is not None:
            await self._lock.release()
        self._admission.state = settled(self._admission.state)
        if failures:
            raise failures[0]

    def _begin(self) -> None:
        for shard in self._shards:
            shard.witness(self._router.high)
        newest = max(
            (segment.max_ts for shard in self._shards for segment in shard.log.segments),
            default=NO_TS,
        )
        if newest:
            self._tso.observe(newest)
        self.caretaker.tell_space()

    def _admitted(self, payloads: Sequence[bytes]) -> Admitted:
        self._look_ahead()
        admitted = self._admission.admit(payloads)
        self._refused += admitted.refused
        self._accepted += len(admitted.items)
        return admitted

    def _look_ahead(self) -> None:
        """How far ahead of all clocks a timestamp may be now."""
        newest_ms = max(self._clock.wall_ms(), physical_ms(self._router.high))
        self._admission.horizon = min(END_OF_TIME, compose(newest_ms + self._ahead_max_ms))

    async def _write(self, admitted: Admitted) -> None:
        """Writes what was taken, and completes the outcomes."""
        self._tso.observe(admitted.newest_ts)
        await self._budget.take(admitted.bytes_held)
        is_over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._put(admitted, partial(end, is_over))
        await is_over  # who gives up leaves it in the queue

    def _put(self, admitted: Admitted, ended: Callable[[], None]) -> None:
        """Queues what has its room; `ended` is told when the outcomes are complete."""
        shares = self._router.split(admitted.items)
        left = len(shares)

        def settled(share: Share, error: BinlogdError | None) -> None:
            nonlocal left
            self._budget.give(share.bytes_held)  # whoever still waits
            if error is not None:
                for at in share.positions:
                    admitted.outcomes[admitted.positions[at]] = error
            left -= 1
            if not left:
                ended()
                if not self._tell_after_s:  # not before: nobody gets a commit that is not synced
                    self._tell_soon()

        for number, share in shares.items():
            self._shards[number].put(share.items, partial(settled, share))
        if not shares:
            ended()
        if self._tell_after_s:
            self._tell_soon()

    def _tell_soon(self) -> None:
        if not self._router.is_any_behind or self._is_telling:
            return
        if self._budget.size or self._tell_after_s:  # others are on their way: once for all
            self._is_telling = True
            asyncio.get_running_loop().call_later(self._tell_after_s, self._tell)
        else:
            self._tell()

    def _tell(self) -> None:
        """Shows the newest commit to the shards that were not written to: one witness for many
        commits, since each costs all of them something."""
        self._is_telling = False
        for number, ts in self._router.shards_behind():
            self._shards[number].witness(ts)

    async def _write_fake(self, ts: Tso) -> None:
        """Moves the watermark to `ts`, which the time source has given; writes only if it must."""
        number = self._routing.shard_of(ts)
        if self._shards[number].watermark >= ts:
            for shard in self._shards:
                shard.witness(ts)
            return
        written, payload = Admitted(1), fake(ts)
        written.add(0, Item(BinlogType.ROLLBACK, ts, ts, payload), ts, len(payload))
        self._fakes += 1
        await self._write(written)
        (outcome,) = written.outcomes
        if outcome is not None:
            raise outcome

    async def _all_logged(self) -> None:
        """Waits until everything that was admitted before is in the log, or has failed: a prewrite
        of an old transaction is not to be seen by the watermark, which may have passed it."""
        await self._budget.take(0)  # behind all who wait for room
        self._budget.give(0)
        await asyncio.sleep(0)  # who was given room just now goes first
        for done in [shard.submit(()) for shard in self._shards]:
            with suppress(Unavailable, NotOnline):  # of those before it
                await done

    async def _settling_fake(self) -> Tso:
        while True:  # until it is written
            try:
                ts = await answer_of("the time source", self._tso.next())
                await self._write_fake(ts)
            except Unavailable as error:
                log.warning("fake_binlog_failed", cause=str(error))
                await asyncio.sleep(_SETTLE_RETRY_S)
            else:
                return ts

    async def _fake_loop(self) -> None:
        """Moves the watermark when no commit does, so that readers hear how far time is: neither
        prewrites nor rollbacks tell them, nor writes that fail."""
        before, said = self._router.high, NO_TS
        while not await is_set_within(self._stopping, self._options.fake_interval_s):
            if self._router.high == before:
                try:
                    ts = await answer_of("the time source", self._tso.next())
                    if ts > self.max_commit_ts and ts != said:
                        await self._write_fake(ts)
                        said = ts  # once: behind an open prewrite it waits like everything else
                except (Unavailable, NotOnline) as error:
                    log.warning("fake_binlog_failed", cause=str(error))
            before = self._router.high


def _shard_options(options: PumpOptions, shards: int, *, believes_rollbacks: bool) -> ShardOptions:
    return ShardOptions(
        log=LogLimits(segment_bytes_max=options.segment_bytes_max),
        filing=FilingOptions(
            queue_max=options.index_queue_max,
            slow_chaser_after_s=options.slow_chaser_after_s,
            every_s=_FILE_EVERY_S * max(1.0, shards / _SHARDS_FEW),
        ),
        group_bytes_max=options.group_bytes_max,
        window_bytes_max=min(options.window_bytes_max, options.memory_budget_bytes // (8 * shards)),
        believes_rollbacks=believes_rollbacks,
        slow=options.slow,
    )


def _blocked(
    shards: Sequence[ShardStatistics], resolvers: Sequence[ResolverStatistics]
) -> tuple[str, float]:
    """What holds the shard that is furthest behind, and for how long."""
    lowest = min(range(len(shards)), key=lambda number: shards[number].max_commit_ts)
    shard, reason = shards[lowest], resolvers[lowest].reason
    if shard.oldest_open_start_ts is None or shard.oldest_open_age_s is None:
        return "", 0.0
    age_s = shard.oldest_open_age_s
    why = (
        f"{shard.name}: the transaction of start_ts {shard.oldest_open_start_ts} has had no"
        f" outcome for {age_s:.1f} s" + (f": {reason}" if reason else "")
    )
    return why, age_s
