"""What must hold at every moment, after every loss of power, and at the end.

The numbers are those of docs/ARCHITECTURE.md, Invariants.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nsmallest
from pathlib import Path

from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.statistics import DrainerState
from binlogd.log.directory import VALUE
from binlogd.log.pointer import FileId, segment_name
from binlogd.log.record import HEADER_BYTES
from binlogd.tso import NO_TS, Tso
from tests.sim.downstream import Downstream
from tests.sim.loop import SimLoop
from tests.sim.nodes import DrainerNode, Node, PumpNode
from tests.sim.tidb import Tidb

_STARTS = (
    "SELECT start_ts FROM prewrites UNION SELECT start_ts FROM commits WHERE start_ts < commit_ts"
)
_PLACES = "SELECT fid, offset, length FROM %s"

OLDEST = 3


class Checks:
    """Looks from outside, and raises AssertionError."""

    def __init__(
        self,
        tidb: Tidb,
        pumps: Sequence[PumpNode],
        drainer: DrainerNode,
        downstream: Downstream,
        loop: SimLoop,
    ) -> None:
        self._tidb, self._pumps, self._drainer = tidb, pumps, drainer
        self.downstream, self._loop = downstream, loop
        self._watermarks: dict[str, tuple[int, Tso]] = {}
        self._saved_ts = self._relayed_ts = NO_TS
        self._found = drainer.found

    # --- at every moment -----------------------------------------------------------------------

    def each_second(self) -> None:
        """Cheap: what parts say of themselves, and what is new downstream."""
        assert not self._loop.faults, self._loop.faults[0]
        assert not self._found, self._found[0]
        for node in self._pumps:
            if node.is_up and node.pump is not None:
                self._look_at_pump(node)
        if self._drainer.is_up and self._drainer.drainer is not None:
            self._look_at_drainer()
            self._look_at_pulls()
        self._look_at_what_is_needed()
        self.downstream.look(self._tidb)

    def _look_at_pump(self, node: PumpNode) -> None:
        pump = node.pump
        assert pump is not None
        lives, before = self._watermarks.get(node.name, (0, NO_TS))
        mark = pump.max_commit_ts
        assert lives != node.lives or mark >= before, f"I4: the watermark of {node.name} fell"
        self._watermarks[node.name] = node.lives, mark
        now, taken_by = pump.statistics(), self._tidb.ledger.acknowledged
        late = [
            each
            for shard in now.shards
            for each in shard.first_late
            # a prewrite that went to another Pump meanwhile comes here whenever it likes
            if taken_by.get(each.start_ts) == node.name
        ]
        assert not late, f"I4: {node.name} had a commit below its watermark: {late}"
        assert now.write_queue_bytes <= now.write_queue_bytes_max, (
            f"I13: {node.name} waits to write"
        )

    def _look_at_drainer(self) -> None:
        drainer = self._drainer.drainer
        assert drainer is not None
        now = drainer.statistics()
        assert not now.unforeseen_errors, f"nobody foresaw: {now.last_error}"
        assert now.state is not DrainerState.STUCK, f"stuck: {now.last_error}"

    def _look_at_pulls(self) -> None:
        """I5: what a Pump has promised to be all it has, it has given."""
        pulls, ledger = self._drainer.pulls, self._tidb.ledger
        for name, source in (pulls.members or {} if pulls is not None else {}).items():
            for start_ts, commit_ts in ledger.committed.items():
                is_its_own = ledger.acknowledged.get(start_ts) == name
                if is_its_own and source.has_passed(commit_ts):
                    assert commit_ts in ledger.perhaps_unseen, (
                        f"I5: {name} promised {source.resolved_ts} and never gave {commit_ts}"
                    )

    def _look_at_what_is_needed(self) -> None:
        """I12: what no checkpoint has passed is there, in the relay log and in its Pump; where
        something is removed too early, the oldest goes first."""
        ledger = self._tidb.ledger
        unsaved = (
            (start_ts, commit_ts)
            for start_ts, commit_ts in ledger.committed.items()
            if commit_ts > self._saved_ts and commit_ts not in ledger.perhaps_unseen
        )
        for start_ts, commit_ts in nsmallest(OLDEST, unsaved):
            values = ledger.values[commit_ts]
            by = ledger.acknowledged[start_ts]
            pump = next(each for each in self._pumps if each.name == by)
            assert pump.disk.is_durable(values, VALUE), f"I12: {by} lost {commit_ts}, not saved yet"
            if commit_ts <= self._relayed_ts:
                there = self._drainer.disk.is_durable(values, "relay")
                assert there, f"I12: the relay log lost {commit_ts}, not saved yet"

    def saved(self, checkpoint: Checkpoint) -> None:
        """I10 and I14, when a checkpoint is saved."""
        self._saved_ts = max(self._saved_ts, checkpoint.commit_ts)
        self.downstream.look_at_saved(checkpoint, self._tidb)
        if checkpoint.consistent:
            self._equals(checkpoint.commit_ts, "I14")

    # --- at an acknowledgement, at a state of the downstream, at a loss of power -----------------

    def acknowledged(self, pump: str, binlog: bytes) -> None:
        """I1: whoever is told OK may rely on it, whatever happens next; I6: so may who merges."""
        node = next(each for each in self._pumps if each.name == pump)
        pulls = self._drainer.pulls if self._drainer.is_up else None
        if pulls is not None and pulls.members is not None and pump not in pulls.members:
            self._found.append(f"I6: {pump} acknowledged a binlog, and the merge does not know it")
        if not node.disk.is_durable(binlog, VALUE):
            self._found.append(f"I1: {pump} acknowledged {len(binlog)} bytes that are not durable")

    def became_visible(self, high_ts: Tso) -> None:
        """I9: the relay log has it on disk before the downstream is given it."""
        if high_ts <= self._relayed_ts:
            return
        ledger, disk = self._tidb.ledger, self._drainer.disk
        for commit_ts, values in ledger.values.items():
            is_new = self._relayed_ts < commit_ts <= high_ts
            is_seen = is_new and commit_ts not in ledger.perhaps_unseen
            if is_seen and not disk.is_durable(values, "relay"):
                self._found.append(f"I9: {commit_ts} is downstream and not in the relay log")
        self._relayed_ts = high_ts

    def power_fails(self, node: Node) -> None:
        """I2: an index row never points past fsynced bytes, in whatever state it survives; I3: a
        transaction is in one shard."""
        shards: dict[Tso, Path] = {}
        for path, (start_ts,) in node.disk.databases.rows("index.db", _STARTS):
            if shards.setdefault(start_ts, path) != path:
                self._found.append(f"I3: {start_ts} is in {path} and in {shards[start_ts]}")
        files, databases = node.disk.files, node.disk.databases
        for table in ("prewrites", "commits", "late"):
            for path, (fid, offset, length) in databases.rows("index.db", _PLACES % table):
                file = files.get(path.parent / VALUE / segment_name(FileId(fid)))
                end = offset + HEADER_BYTES + length
                if file is not None and not (file.is_name_durable and end <= file.synced):
                    self._found.append(f"I2: {path} has {fid}:{offset} of {table}, not synced")

    # --- at the end ------------------------------------------------------------------------------

    def behind(self) -> str:
        """What is not downstream yet; "" when all is."""
        down = [node.name for node in (*self._pumps, self._drainer) if not node.is_up]
        if down or self._drainer.drainer is None:
            return f"{down or 'the drainer'} is not up yet"
        state = self._drainer.drainer.statistics().state
        if state is not DrainerState.RUNNING:  # it waits to try again, or is paused
            return f"the drainer is {state.value}"
        newest = max(self._tidb.ledger.committed.values(), default=NO_TS)
        saved = self.downstream.checkpoint
        reached = saved.commit_ts if saved is not None else NO_TS
        if reached >= newest:
            return ""
        drainer = self._drainer.drainer
        blocking = drainer.statistics().blocking if drainer is not None else "no drainer"
        pumps = [
            (node.name, node.is_up, node.pump.statistics().blocked_by if node.pump else "")
            for node in self._pumps
        ]
        return f"checkpoint {reached}, newest {newest}, waits for {blocking}; {pumps}"

    def at_rest(self) -> None:
        """Everything is there, once."""
        self.downstream.look_at_rest(self._tidb)
        checkpoint = self.downstream.checkpoint
        assert checkpoint is not None
        self._equals(checkpoint.commit_ts, "at rest")

    def at_end(self) -> None:
        """The Drainer has been stopped in good order."""
        checkpoint = self.downstream.checkpoint
        assert checkpoint is not None
        assert checkpoint.consistent, "I14: drained, and not consistent"
        self._equals(checkpoint.commit_ts, "at the end")

    def _equals(self, commit_ts: Tso, when: str) -> None:
        differences = self.downstream.differences(self._tidb.model, commit_ts)
        assert not differences, f"{when}: {differences[0][:500]}"
