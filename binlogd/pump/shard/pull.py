"""What a shard gives to those who pull: commits in order, each joined with its prewrite.

A binlog that is larger than a batch comes alone: it is announced, and read once to check it when
the puller asks for it. Its rows are left in the log (`StoredPayload`). Where that cannot be, it has
its share of the budget that all pulls have in common.

Invariant I5. A pull is in commit_ts order, complete up to the `resolved_ts` it promises, and never
ahead of the watermark. A puller who keeps up is served from memory; one who is behind reads the
index and the log in batches. Nobody polls: the watermark wakes them.

Source: tidb-binlog pump/storage/storage.go, PullCommitBinlog (which polls every 100 ms, and passes
over a commit whose prewrite is missing; here that ends the pull with an error).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

import structlog

from binlogd.binlog import BinlogType, CommittedBinlog, Payload, Pulled
from binlogd.errors import Behind, CorruptRecord
from binlogd.log.pointer import Place, Spot
from binlogd.log.stored import PIECE_BYTES, StoredRecord
from binlogd.pump.budget import Budget, Held
from binlogd.pump.shard.found import BatchReading, FoundCommit, apart, cut, in_memory, lost
from binlogd.pump.shard.options import PullOptions
from binlogd.pump.shard.recovery import check_filed
from binlogd.pump.shard.shard import Shard
from binlogd.pump.shard.window import Kept
from binlogd.tso import NO_TS, Tso
from binlogd.wire import peek
from binlogd.wire.joining import join_of
from binlogd.wire.outline import begin, large_rows

log = structlog.get_logger(__name__)


class ShardSource:
    """A `BinlogSource` over one shard; any number of pulls, each on its own.

    `room` is what large binlogs of all pulls that are held may take together.
    """

    def __init__(self, shard: Shard, options: PullOptions, room: Budget) -> None:
        self._shard = shard
        self.name = shard.name
        self._options = options
        self._large_bytes = 2 * options.bytes_max  # above it a binlog comes alone
        self._room = room

    async def pull(self, after: Tso) -> AsyncGenerator[Pulled, None]:
        """Binlogs with commit_ts > after; 0 means from the oldest that is there.

        Ends only when the shard stops. Raises Behind when they were deleted, CorruptRecord when
        they do not read, LogFailed or IndexUnavailable.
        """
        position = max(after, self._shard.filer.marks.gc_ts) if after <= NO_TS else after
        is_announced = False
        while not self._shard.has_stopped:  # ends with the shard, or with the puller
            changed, filed = self._shard.changed.next, self._shard.filer.filed.next
            watermark = self._shard.watermark
            self._check_not_gone(position)
            if position >= watermark:
                await changed.wait()
                continue
            filed_ts = min(self._shard.filer.filed_ts, watermark)
            if filed_ts <= position < self._shard.window.floor:
                await filed.wait()  # what follows has left memory before the index has it
                continue
            with Held(self._room) as held:
                pulled = await self._next(position, watermark, filed_ts, held, alone=is_announced)
                position, is_announced = pulled.resolved_ts, pulled.next_bytes > 0
                yield pulled
                del pulled  # it is the puller's alone

    def _check_not_gone(self, after: Tso) -> None:
        gc_ts = self._shard.filer.marks.gc_ts
        if after < gc_ts:
            raise Behind(after, gc_ts)

    async def _next(
        self, after: Tso, watermark: Tso, filed_ts: Tso, held: Held, *, alone: bool
    ) -> Pulled:
        try:
            if after >= self._shard.window.floor:
                return await self._from_window(after, watermark, held, alone=alone)
            return await self._from_index(after, filed_ts, held, alone=alone)
        except CorruptRecord:
            self._check_not_gone(after)  # deleted while it was read
            raise

    async def _from_window(self, after: Tso, upto: Tso, held: Held, *, alone: bool) -> Pulled:
        kept, reached = self._shard.window.after(
            after,
            upto=upto,
            commits_max=self._options.commits_max,
            bytes_max=self._options.bytes_max,
        )
        unknown = lost(kept)
        if unknown:  # prewrites that the shard has not seen since it was opened
            await self._shard.filer.caught_up()
            places = await self._shard.index.prewrites([each.start_ts for each in unknown])
            for each in unknown:
                each.place = places.get(each.start_ts)
            kept, reached = cut(kept, reached, self._options.bytes_max)
        kept, reached, next_bytes = apart(kept, reached, large_bytes=self._large_bytes, alone=alone)
        commits, binlogs, elsewhere = in_memory(kept)
        if elsewhere:
            found = await self._completed([commits[number] for number in elsewhere], held)
            for number, payload in zip(elsewhere, found, strict=True):
                each = commits[number]
                binlogs[number] = CommittedBinlog(each.start_ts, each.commit_ts, payload)
            binlogs = [each for each in binlogs if each.payload]
        return Pulled(binlogs, reached, next_bytes)

    async def _completed(self, kept: Sequence[Kept], held: Held) -> list[Payload]:
        """Commits with prewrites that are not in memory; nothing of one that nobody has."""
        fetched = await self._fetched(kept)
        whole: list[Payload] = []
        for each in kept:
            prewrite = fetched.get((each.commit_ts, each.start_ts))
            payload: Payload | None = b""
            if prewrite is not None:
                payload = join_of(each.start_ts, each.commit_ts, each.payload, prewrite)
            elif each.place is not None:
                stored = await self._shard.log.segments.stored(each.place)
                payload = await _joined_large(stored, each.payload, held)
            else:
                self._orphan(each.start_ts, each.commit_ts, None)
            whole.append(self._ours(each.commit_ts, payload))
        return whole

    async def _fetched(self, kept: Sequence[Kept]) -> dict[tuple[Tso, Tso], bytes]:
        """Prewrites that are no longer in memory; they do not become part of the window again.
        Large ones are left out: they are joined one by one."""
        placed: list[tuple[Kept, Spot]] = [
            (each, each.place)
            for each in kept
            if each.place is not None and each.place.length <= self._large_bytes
        ]
        payloads = await self._shard.log.segments.read([place for _, place in placed])
        return {
            (each.commit_ts, each.start_ts): payload
            for (each, _), payload in zip(placed, payloads, strict=True)
        }

    async def _from_index(self, after: Tso, upto: Tso, held: Held, *, alone: bool) -> Pulled:
        found, reached = await self._found(after, upto)
        large_bytes = self._large_bytes
        found, reached, next_bytes = apart(found, reached, large_bytes=large_bytes, alone=alone)
        reading = BatchReading(found, large_bytes)
        for orphan in reading.orphans:
            self._orphan(orphan.start_ts, orphan.commit_ts, orphan.place)
        binlogs = reading.joined(await self._shard.log.segments.read(reading.places))
        if isinstance(binlogs, int):
            raise self._elsewhere(binlogs)
        for number in reading.large:
            each, commit = reading.commits[number], binlogs[number].payload
            assert each.prewrite is not None, "only a prewrite makes it large"
            assert isinstance(commit, bytes), "a commit alone is read whole"
            stored = await self._shard.log.segments.stored(Place(*each.prewrite))
            payload = self._ours(each.commit_ts, await _joined_large(stored, commit, held))
            binlogs[number] = CommittedBinlog(each.start_ts, each.commit_ts, payload)
        return Pulled(binlogs, reached, next_bytes)

    def _ours(self, commit_ts: Tso, joined: Payload | None) -> Payload:
        """What was joined of two records, if they are of one transaction."""
        if joined is None:
            raise self._elsewhere(commit_ts)
        return joined

    def _elsewhere(self, commit_ts: int) -> Exception:
        return self._shard.index.database.found_damage(
            f"the row of commit_ts {commit_ts} leads to another binlog"
        )

    async def _found(self, after: Tso, upto: Tso) -> tuple[list[FoundCommit], Tso]:
        """The next commits within the limits, and how far they reach; those of one commit_ts
        stay together."""
        await check_filed(self._shard.index, self._shard.log.segments, after)
        limit = self._options.commits_max
        while True:  # ends: the limit doubles until it holds all commits of one timestamp
            found = await self._shard.index.commits_after(after, upto=upto, limit=limit)
            if len(found) < limit:
                break
            upto = found[-1].commit_ts
            if found[0].commit_ts < upto:  # the last one may have others beside it
                found = [each for each in found if each.commit_ts < upto]
                upto = found[-1].commit_ts
                break
            limit *= 2
        self._check_not_gone(after)  # what was deleted meanwhile was perhaps not found for that
        return cut(found, upto, self._options.bytes_max)

    def _orphan(self, start_ts: Tso, commit_ts: Tso, place: Spot | None) -> None:
        """A commit whose prewrite this log never had."""
        self._shard.log.measures.errors["feed_pre_write_value"] += 1
        if self._options.skip_orphans:
            log.warning("orphan_skipped", start_ts=start_ts, commit_ts=commit_ts)
            return
        fid, offset = (self._shard.log.segments.end if place is None else place)[:2]
        raise CorruptRecord(
            self._shard.log.segments.path(fid),
            offset,
            f"no prewrite of start_ts {start_ts} for the commit at {commit_ts}, its rows are"
            " unknown; to pass over such commits, set pump.skip-orphan-commits",
        )


async def _joined_large(prewrite: StoredRecord, commit: bytes, held: Held) -> Payload | None:
    """Both as one, of which nothing is in memory but what stands before the rows, which are left in
    the log; None where they are of two transactions.

    A prewrite by an old client, in an adopted log, has to be made anew, and is held.
    """
    size, (_, start_ts, commit_ts, _) = len(prewrite), peek.peek(commit)
    first, last = prewrite.cut(0, PIECE_BYTES), prewrite.cut(size - PIECE_BYTES, size)
    of_prewrite, of_commit = begin(first), begin(commit)
    if of_commit is not None and of_prewrite is not None and first[1] == BinlogType.PREWRITE:
        if of_prewrite.start_ts != start_ts:
            return None
        if large_rows(first, last, size) is not None:
            return prewrite.with_head(commit[: of_commit.value_at], of_prewrite.value_at)
    await held.take(size)
    return join_of(start_ts, commit_ts, commit, bytes(prewrite))
