"""Snapshots and changes as the job makes them, in this process: without Spark and its JVM.

The same pieces in the same order; what Spark does between them (hand out tasks, shuffle packets by
partition, sort them) is done by hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from binlogd.errors import Refused
from binlogd.snapshot.log import reader
from binlogd.snapshot.log.events import Reads, WantedTables, committed_prewrites, events
from binlogd.snapshot.log.packets import PACKETS, Spread, all_of, folded, net_changes, winners_of
from binlogd.snapshot.log.packets import unpacked as changes_of
from binlogd.snapshot.log.prewrites import LogHeads, heads, packed, unpacked
from binlogd.snapshot.process.jobdir import Pinned, pinned
from binlogd.snapshot.publishing.publish import publish
from binlogd.snapshot.spec import ChangesOptions, ExportSpec, TypeOptions
from binlogd.snapshot.tables import transactions
from binlogd.snapshot.tables.built_on import Base, open_base
from binlogd.snapshot.tables.catalog import Catalog, Origin, catalog, name_in
from binlogd.snapshot.writing import write, writer
from binlogd.snapshot.writing.changes import write_changes
from binlogd.snapshot.writing.files import FileTarget, Written, parse_results
from binlogd.tidb.model import jobs_from_json
from binlogd.tso import NO_TS, Tso
from tests.support.snapshots import manifest


class _Wanted(NamedTuple):
    """Which changes of a log are read."""

    log: LogHeads
    commit_ts: Tso
    since: Tso
    known: Catalog
    has_before: bool

    def of_tasks(self) -> Iterator[list[pa.RecordBatch]]:
        """The changes of each task."""
        tables = self.known.tables
        handles = {table_id: plan.handle for table_id, plan in tables.items()}
        behind = {table_id: plan.since_ts for table_id, plan in tables.items() if plan.since_ts}
        wanted = WantedTables(
            handles, self.known.passed_over, behind, self.has_before, self.known.moves
        )
        of_parts = transactions.reads(self.log, self.commit_ts, self.since)
        for part, reads in zip(self.log.parts, of_parts, strict=True):
            yield list(events(committed_prewrites(part, Reads.unpacked(reads.packed())), wanted))

    def shuffled(self, to: Spread) -> Iterator[tuple[str, list[pa.RecordBatch]]]:
        """The packets of each partition, by table and piece; and the name of the part."""
        found: list[dict[str, Any]] = []
        for batches in self.of_tasks():
            for batch in batches:
                found += to.packets(folded(batch)).to_pylist()
        found.sort(key=lambda each: (each["table_id"], each["piece"]))
        for number in range(to.partitions):
            ours = [each for each in found if each["partition"] == number]
            rows = [pa.RecordBatch.from_pylist([each], PACKETS) for each in ours]
            yield f"{number:05d}.0", rows


@dataclass(frozen=True)
class PlainExport:
    """Exports of one data directory; every call has a directory of its own below `work`."""

    work: Path
    data_dir: Path
    history: bytes
    spread: Spread
    slice_bytes: int

    def snapshot(self, as_of: Tso = NO_TS, base: Path | None = None) -> Path:
        """A published snapshot."""
        job = self._job("snapshot")
        opened = open_base(base, TypeOptions(), "") if base else None
        with pinned(self.data_dir, job) as log_files:
            is_headless = log_files.gone_ts > NO_TS
            log, commit_ts = self._log(log_files, as_of, opened)
            origin = Origin(opened, is_headless)
            known = self._catalog(log, commit_ts, origin)
            target = FileTarget(str(job / "staging"), TypeOptions(), 1000, str(job / "keys"))
            plans = dict(known.tables)
            carried_on = [table_id for table_id, plan in plans.items() if plan.since_ts]
            since = min((plan.since_ts for plan in plans.values()), default=NO_TS)
            written: list[Written] = []
            has_before = any(plan.carry and plan.carry.is_loose for plan in plans.values())
            wanted = _Wanted(log, commit_ts, since, known, has_before)
            for part, packets in wanted.shuffled(self.spread):
                winners = winners_of(changes_of(packets, partial(name_in, plans)), carried_on)
                done = writer.write(winners, plans, known.tracker, target, part)
                written += _written(done)
            for number, task in enumerate(write.carry_tasks(plans)):
                of_table = plans[task.table_id]
                written += write.take_over_table(task, of_table, target, f"base-{number:05d}.0")
        schema = write.keep_schema(known, target)
        tables, left_out = write.entries(known, written, target)
        described = msgspec.structs.replace(
            manifest(commit_ts, *tables),
            left_out=(*known.left_out, *left_out),
            schema=schema,
        )
        return publish(job / "staging", job, described)

    def changes(self, from_ts: Tso, to_ts: Tso, options: ChangesOptions) -> Path:
        """Published changes behind one moment up to another."""
        job = self._job("changes")
        with pinned(self.data_dir, job) as log_files:
            log, commit_ts = self._log(log_files, to_ts, None)
            origin = Origin(Base("", from_ts, TypeOptions(), {}), changes_from=from_ts)
            known = self._catalog(log, commit_ts, origin)
            target = FileTarget(str(job / "staging"), TypeOptions(), 1000)
            plans, written = dict(known.tables), list[Written]()
            wanted = _Wanted(log, commit_ts, from_ts, known, has_before=True)
            if options.all_versions:
                every = (all_of(batches) for batches in wanted.of_tasks())
                parts = [(f"{number}.0", each) for number, each in enumerate(every)]
            else:
                shuffled = wanted.shuffled(self.spread)
                name_of = partial(name_in, plans)
                parts = [
                    (part, map(net_changes, changes_of(rows, name_of))) for part, rows in shuffled
                ]
            for part, rows in parts:
                done = write_changes(rows, plans, known.tracker, target, part, options)
                written += _written(done)
        tables, _ = write.entries(known, written, target, has_empty=False)
        return publish(job / "staging", job, manifest(commit_ts, *tables))

    def _job(self, name: str) -> Path:
        job = self.work / f"{name}-{len(list(self.work.iterdir()))}"
        (job / "staging").mkdir(parents=True)
        return job

    def _log(self, log_files: Pinned, as_of: Tso, base: Base | None) -> tuple[LogHeads, Tso]:
        parts = reader.slices(log_files.segments, self.slice_bytes)
        if not parts:  # as `scan.log` refuses it
            raise Refused("the log holds no binlogs: there is nothing to export")
        found = []
        for part in parts:  # as they come from a task
            (row,) = packed(0, heads(part)).to_pylist()
            found.append(unpacked(row["heads"], row["ddl"]))
        log = LogHeads(parts, found)
        spec = ExportSpec(
            segments=(),
            schema_history="",
            as_of=as_of,
            base=base.directory if base else "",
            base_ts=base.commit_ts if base else NO_TS,
            gone_ts=log_files.gone_ts,
            known_resolved_ts=NO_TS,
            out="",
            staging="",
            scratch="",
            ignore_schemas=(),
        )
        _, commit_ts, _ = transactions.moment(log, spec)
        return log, commit_ts

    def _catalog(self, log: LogHeads, commit_ts: Tso, origin: Origin) -> Catalog:
        ddl = transactions.ddl_binlogs(log.ddl, commit_ts)
        jobs = jobs_from_json(self.history)
        begins = Tso(int(log.start_ts.min()))
        return catalog(
            jobs,
            ddl,
            log_begins=begins,
            ignore_schemas=("mysql",),
            origin=origin,
            seen=partial(transactions.newest_version, log),
        )


def _written(results: Iterator[pa.RecordBatch]) -> list[Written]:
    return parse_results(row for batch in results for row in batch.to_pylist())
