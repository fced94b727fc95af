"""What the Spark job of the pipeline does with a lake, without a Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pickle import dumps, loads
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from binlogd.snapshot.log.packets import PACKETS
from binlogd.snapshot.log.rowkey import Op
from binlogd.snapshot.tables.catalog import DdlBinlog
from binlogd.spark.counts import RowCounts, by_table, counted
from binlogd.spark.inputs import open_input
from binlogd.spark.lake import appending, merging, moving
from binlogd.spark.lake.changelog import (
    ChangelogBatch,
    HeldChangelog,
    batch_of,
)
from binlogd.spark.lake.manifest import LakeBatch, LakeTables
from binlogd.spark.lake.merging import Merged, WrittenPart
from binlogd.spark.lake.moving import Heads, Lake
from binlogd.spark.lake.preparing import prepare
from binlogd.spark.late import in_doubt, late_rows, newest_version
from binlogd.spark.plan import LakeState, planned, schema_before
from binlogd.spark.request import ReadRequest, request
from binlogd.spark.source import BinlogdSource
from binlogd.spark.steps import steps_behind
from binlogd.tso import Tso
from tests.support.logged import Logged, changes

T = TypeVar("T")
R = TypeVar("R")

GATED = ("delta", pytest.param("iceberg", marks=pytest.mark.soak))
"""Kinds of a lake for what does not depend on the kind: the gate tries it with one."""
BY_PIECE = [("table_id", "ascending"), ("piece", "ascending")]


class Killed(Exception):
    """A process that is no more."""


@dataclass
class InProcess:
    """Tasks of as many cores, one after the other; what they are given and give travels."""

    cores: int

    def map(self, act: Callable[[T], R], work: Sequence[T]) -> list[R]:
        """See `preparing.Executors`."""
        return [loads(dumps(loads(dumps(act))(loads(dumps(each))))) for each in work]


class Pipeline:
    """What the Spark job does with a batch, by pyarrow alone; it can be killed at each step."""

    def __init__(self, logged: Logged, lake: Lake, **more: str) -> None:
        form = "change-steps" if lake.mode == "upsert" else "changelog-steps"
        self._options = logged.options(form=form, **more)
        self._asked = request(self._options)
        self._input = open_input(self._asked)
        self._lake, self.cores = lake, 1
        self.forms = Counter[str]()
        """Of tables merged: alone; as parts; as one part whose files several went through."""

    @property
    def asked(self) -> ReadRequest:
        """What is read."""
        return self._asked

    def run(self, start: int, end: int, kill_at: int = 1 << 30, *, is_first: bool = False) -> int:
        """How many steps there were."""
        steps = iter(range(1 << 30))

        def step() -> None:
            if next(steps) == kill_at:
                raise Killed

        manifest = self._lake.manifest()
        now = manifest.read()
        gone_ts, is_first = self._input.gone_ts(), is_first or not start
        begin = moving.begin(now, Tso(start), gone_ts, "the lake", is_first=is_first)
        if begin >= end:
            return 0
        parts = self._steps(begin, end)
        jobs = self._input.jobs()
        found = (each for part in parts for each in steps_behind(begin, part))
        ddl = [each for each in found if isinstance(each, DdlBinlog)]
        tracker = manifest.schema_at(begin) or schema_before(jobs, begin, Tso(end), ddl)
        if self._lake.mode == "changelog":
            columns = manifest.columns_at(begin)
            held = HeldChangelog(tracker, now, columns, self._lake.layouts)
            self._log(batch_of(jobs, ddl, held, self._asked, end), now, begin, parts, step)
            return next(steps)
        seen = partial(newest_version, self._input, Tso(end))
        state = LakeState(tracker, frozenset(now.placed), now.leaving, seen)
        batch = planned(jobs, ddl, state, self._asked, start=begin, end=Tso(end))
        moving.check(now, batch, is_first=is_first)
        step()
        late = late_rows(self._input, batch, self._asked, begin)
        doubts = in_doubt(self._input, batch, begin)
        heads = prepare(self._lake, now, batch, late, InProcess(self.cores))
        step()
        counts = [of for part in parts for of in counted(merging.of_tables(batch, begin, part))]
        read = by_table(tuple(row.values()) for each in counts for row in each.to_pylist())
        done = list[Merged]()
        for merged in self._merged(batch, begin, heads, parts, read):
            done.append(merged)
            step()
        heads |= {each.head.table_id: each.head for each in done}
        accounts = merging.accounted(batch, read, done)
        moving.finish(self._lake, batch, heads, doubts, accounts)
        return next(steps)

    def _merged(
        self,
        batch: LakeBatch,
        begin: Tso,
        heads: Heads,
        steps: list[list[pa.RecordBatch]],
        read: dict[int, RowCounts],
    ) -> Iterator[Merged]:
        lake, parts = self._lake, merging.parts_of(read, self.cores)
        sent = [merging.spread(batch, parts, begin, each) for each in steps]
        packets = pa.Table.from_batches([each for some in sent for each in some], PACKETS)
        packets, written = packets.sort_by(BY_PIECE), list[WrittenPart]()
        for number in range(parts.total):
            of_part = pc.equal(packets["partition"], number)
            mine = packets.filter(of_part).to_batches(max_chunksize=1)
            for each in merging.merge(lake, heads, batch, parts, mine):
                if isinstance(each, WrittenPart):
                    written.append(each)
                    self.forms["part" if parts.of[each.table_id].many > 1 else "share"] += 1
                else:
                    self.forms["alone"] += 1
                    yield each
        work = merging.shares(lake, heads, batch, written, parts.cores)
        left = [merging.leave_share(lake, heads, batch, each) for each in work]
        yield from merging.commit(lake, heads, batch, written, left)

    def _log(
        self,
        batch: ChangelogBatch,
        now: LakeTables,
        begin: Tso,
        parts: list[list[pa.RecordBatch]],
        step: Callable[[], None],
    ) -> None:
        step()
        names: dict[str, list[str]] = {}
        for part in parts:
            for written in appending.write(self._lake, batch, begin, part):
                for directory, name in zip(*written.to_pydict().values(), strict=True):
                    names.setdefault(directory, []).append(name)
            step()
        heads = {each.directory: each for each in now.tables.values()}
        appended = list[appending.Appended]()
        for files in sorted(names.items()):
            appended.append(appending.commit(self._lake, batch, heads, files))
            step()
        appending.finish(self._lake, batch, now, appended)

    def _steps(self, start: int, end: int) -> list[list[pa.RecordBatch]]:
        source = BinlogdSource({**self._options, "from": str(start), "to": str(end)})
        reader = source.reader(source.schema())
        return [list(reader.read(part)) for part in reader.partitions()]


def check_counted(logged: Logged, lake: Lake) -> None:
    """What the lake counted of its tables is what the log says of them, from its beginning."""
    now, rows = lake.manifest().read(), changes(logged.options())
    rows = [each for each in rows if each["commit_ts"] <= now.commit_ts and not each["job_id"]]
    ops = Counter((each["table_id"], each["op"]) for each in rows)
    assert now.counted_from == 0
    assert now.counted.keys() == now.tables.keys()
    for name, of in now.counted.items():
        kinds = Op.PUT, Op.UPDATE, Op.DELETE
        found = [ops[now.tables[name].table_id, kind] for kind in kinds]
        assert [of.inserts, of.updates, of.deletes] == found, name
        assert of.put + of.gone <= sum(found)
    assert any(of.put and of.gone for of in now.counted.values())


def moments(logged: Logged, parts: int) -> list[int]:
    """Ends of so many batches; the last is that of the log."""
    found = logged.workload.model.moments()
    return [*(found[len(found) * part // parts] for part in range(1, parts)), found[-1]]
