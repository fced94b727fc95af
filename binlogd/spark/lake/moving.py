"""A batch of the pipeline into a lake of any kind: look, prepare, merge, turn the page.

    now = lake.manifest().read()
    check(now, batch)                  before anything is touched
    heads = prepare(lake, now, batch)  tables that are new, new columns, rows that DDL moved; by the
                                       driver (`preparing`)
    ...                                the changes of the batch; by workers (`merging`)
    finish(lake, batch, heads)         one write makes it hold

`heads` are the versions that a batch has come to, table by table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from binlogd.snapshot.spec import DoubtfulRows
from binlogd.snapshot.tables.catalog import TablePlan
from binlogd.spark.counts import RowCounts, total
from binlogd.spark.lake.content import LakeContent
from binlogd.spark.lake.kinds import LakeKind
from binlogd.spark.lake.layout import Layouts
from binlogd.spark.lake.manifest import (
    IN_DOUBT_MAX,
    LakeBatch,
    LakeManifest,
    LakeMode,
    LakeTable,
    LakeTables,
    PipelineStopped,
    leaving_of,
    placed_of,
)
from binlogd.spark.lake.place import LakeLocation
from binlogd.tso import Tso

Heads = Mapping[int, LakeTable]


@dataclass(frozen=True, slots=True)
class Lake:
    """A lake by its place: nothing of it is open, so it travels to workers. `catalog` is the name
    of an Iceberg catalog that has its tables too, or "". `layouts` are those that were asked
    for."""

    place: LakeLocation
    mode: LakeMode = "upsert"
    catalog: str = ""
    layouts: Layouts = field(default_factory=dict)

    def manifest(self) -> LakeManifest:
        """Raises ConfigError."""
        return LakeManifest(self.place, self.mode)

    def content(self) -> LakeContent:
        """What makes versions of its tables by their rows. Raises ConfigError."""
        return LakeContent(self.place, self.kind())

    def kind(self) -> LakeKind:
        """What makes versions of its tables. Raises ConfigError."""
        if self.place.kind == "delta":
            from binlogd.spark.lake.delta import Delta

            return Delta(self.place)
        from binlogd.spark.lake.iceberg import Iceberg

        return Iceberg(self.place)


def begin(now: LakeTables, start: Tso, gone_ts: Tso, where: str, *, is_first: bool) -> Tso:
    """Where a batch behind `start` begins for a lake that is where it is: what it has, it is not
    given again. `is_first`: of its checkpoint.

    Raises PipelineStopped for a lake that lacks what was before the batch, and for a log that does
    (it is complete behind `gone_ts` only).
    """
    if now.commit_ts >= start or (is_first and not now.commit_ts):
        found = max(Tso(now.commit_ts), start)
        if found >= gone_ts:
            return found
        raise PipelineStopped(
            f"{where} is at commit_ts {now.commit_ts}, and the log is complete behind {gone_ts}"
            " only: begin at an empty place, with a snapshot or a dump of that moment or later"
            " (--base), or a changelog behind that (--from)"
        )
    raise PipelineStopped(
        f"{where} is at commit_ts {now.commit_ts}, and this batch begins at {start}: what lies"
        " between would be lost. It was restored, or is not the one that this checkpoint was made"
        " with: begin with another --checkpoint (and --take-over), which goes on where the lake is"
    )


def check_names(plans: Mapping[int, TablePlan]) -> None:
    """Raises PipelineStopped where a lake could not tell two tables apart."""
    for name, count in Counter(plan.label for plan in plans.values()).items():
        if count > 1:
            raise PipelineStopped(
                f"{name}: two tables are called so, as a dot is in the name of one or of its"
                " database: rename it upstream, or leave both out (--except)"
            )


def check(now: LakeTables, batch: LakeBatch, *, is_first: bool) -> None:
    """Whether rows from before the batch are in the lake. Raises PipelineStopped."""
    check_names(batch.after)
    there = now.by_id()
    needed = set(batch.after).union(*batch.origins.values())
    missing = [
        plan.label
        for table_id, plan in batch.before.items()
        if table_id in needed and table_id not in there
    ]
    if missing:
        where = "where the pipeline begins" if is_first else "before this batch"
        raise PipelineStopped(
            f"{', '.join(missing)}: there already {where}, and its older rows are in no binlog that"
            " is read; begin at the beginning of the log (no --from), with a snapshot or a dump"
            " (--base, into a place where no lake is yet), or leave it out (--except)"
        )


def finish(
    lake: Lake,
    batch: LakeBatch,
    heads: Heads,
    in_doubt: Sequence[DoubtfulRows],
    counts: Mapping[int, RowCounts],
) -> LakeTables:
    """Says which versions belong together from now on, which rows of the batch are in doubt, and
    what it counted."""
    tables = {plan.label: heads[table_id] for table_id, plan in batch.after.items()}
    manifest = lake.manifest()
    last = manifest.read()
    before = {last.tables[name].table_id: each for name, each in last.counted.items()}
    now = LakeTables(
        batch.end,
        tables,
        lake.place.kind,
        placed_of(batch.after),
        (*last.in_doubt, *in_doubt)[-IN_DOUBT_MAX:],
        leaving_of(batch.after),
        counted={
            name: total(of[each.table_id] for of in (before, counts) if each.table_id in of)
            for name, each in tables.items()
        },
        counted_from=last.counts_begin(),
    )
    manifest.turn(now, batch.tracker)
    show(lake, now)
    return now


def show(lake: Lake, now: LakeTables, *, checks_all: bool = False) -> None:
    """Lets readers find the tables by name, where the kind of lake has such a thing; what a batch
    did not touch is looked at with `checks_all` alone. Raises CatalogFailed, PipelineStopped."""
    lake.kind().show(now)
    if lake.catalog:
        from binlogd.spark.lake.names import CatalogNames

        CatalogNames(lake.place, lake.catalog).follow(now, checks_all=checks_all)
