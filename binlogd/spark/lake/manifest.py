"""What a lake says of itself: which versions belong together, and whose it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import msgspec
import pyarrow as pa

from binlogd.archive.store import ArchiveStore
from binlogd.errors import ConfigError, Corrupt, GaveUp
from binlogd.snapshot.log.moves import Moves
from binlogd.snapshot.log.rowkey import HandleKind
from binlogd.snapshot.spec import DoubtfulRows, TypeOptions
from binlogd.snapshot.tables.catalog import TablePlan
from binlogd.spark.counts import RowCounts
from binlogd.spark.lake.layout import LakeLayout
from binlogd.spark.lake.place import Kind, LakeLocation

TABLES_NAME = "tables.json"
CLAIM_NAME = "_pipeline.json"
DIRECTORY = "table-"
_SCHEMAS = "_schema"
_COLUMNS = ".columns"
IN_DOUBT_MAX = 100
T = TypeVar("T")
LakeMode = Literal["upsert", "changelog"]
MODES: tuple[LakeMode, ...] = ("upsert", "changelog")

WAY_PAST = (
    "Leave the table out (--except), or begin another lake with a later snapshot of `binlogd"
    " export` (--base)"
)
"""For tables that the log alone cannot tell."""


class PipelineStopped(GaveUp):
    """A batch that cannot be applied as it is; everything before it is."""


class LakeTable(msgspec.Struct, frozen=True):
    """One table of the lake at the moment of `tables.json`.

    `version` is Delta's, or the id of Iceberg's snapshot (0: it never had rows); `metadata` is
    where Iceberg's metadata of that version are. `rows` and `files` are those of that version; None
    for one of a binlogd that did not count. `layout` is that of new files.
    """

    table_id: int
    directory: str
    version: int
    metadata: str = ""
    rows: int | None = None
    files: int | None = None
    layout: LakeLayout = LakeLayout()


class LakeTables(msgspec.Struct, frozen=True):
    """Which tables there are, by `database.table`, complete up to `commit_ts`. `placed` are the ids
    of those whose keys have a partition in them (`HandleKind.PLACED`). `in_doubt` are the last
    `IN_DOUBT_MAX` DDL that rows may have seen or not. `leaving` are columns that a DROP COLUMN had
    announced, which are not in the files any more: ids of their tables, and their own. `mode` says
    whether tables hold rows as they are, or every change. `counted` are the changes behind
    `counted_from` of all these tables: those that were read, and what was written of them; of a
    changelog, what was written alone."""

    commit_ts: int
    tables: dict[str, LakeTable]
    format: Kind = "delta"
    placed: tuple[int, ...] = ()
    in_doubt: tuple[DoubtfulRows, ...] = ()
    leaving: tuple[tuple[int, int], ...] = ()
    mode: LakeMode = "upsert"
    counted: dict[str, RowCounts] = {}
    counted_from: int | None = None

    def counts_begin(self) -> int:
        """Behind which commit_ts what is counted next stands with what was counted already."""
        return self.commit_ts if self.counted_from is None else self.counted_from

    def by_id(self) -> dict[int, LakeTable]:
        """The same by table id."""
        return {each.table_id: each for each in self.tables.values()}


class Claim(msgspec.Struct, frozen=True):
    """Which pipeline keeps a target: the id of its checkpoint, and where that is. The id is "" as
    long as there was no batch: Spark gives it then."""

    pipeline: str
    checkpoint: str


def is_new(found: Claim | None, mine: Claim, where: str, *, takes_over: bool) -> bool:
    """Whether a claim is to be noted, beside or over what is found. Raises PipelineStopped where
    another pipeline keeps the target."""
    if found is None:
        return True
    if found.checkpoint == mine.checkpoint and "" in (found.pipeline, mine.pipeline):
        return bool(mine.pipeline)
    if found.pipeline == mine.pipeline and mine.pipeline:
        return False
    if takes_over:
        return True
    raise PipelineStopped(
        f"{where} is kept by another pipeline, whose checkpoint is {found.checkpoint}. Stop this"
        " one; or, if that one ended for good or its checkpoint is lost, begin with --take-over"
    )


def found(store: ArchiveStore, name: str, kind: type[T], where: str) -> T | None:
    """What a small file of a place holds; None where it is not there. Raises Corrupt."""
    content = store.found(name)
    try:
        return None if content is None else msgspec.json.decode(content, type=kind)
    except ValueError as error:
        raise Corrupt(f"{where}/{name}: {error}") from error


def claim_place(store: ArchiveStore, where: str, mine: Claim, *, takes_over: bool) -> None:
    """Notes in a directory whose it is. Raises PipelineStopped where it is another's."""
    noted = found(store, CLAIM_NAME, Claim, where)
    if is_new(noted, mine, where, takes_over=takes_over):
        store.put(CLAIM_NAME, msgspec.json.encode(mine))


@dataclass(frozen=True, slots=True)
class LakeBatch:
    """A range of commit_ts: all tables before it, those that are wanted after it, and the schema
    that explains its rows.

    `moves` is what DDL did to rows without a binlog, of rows that were there at schema version
    `version`, and `origins` of which tables before it a table after it may get some. `placed` are
    tables whose keys had a partition in them before it.
    """

    end: int
    before: Mapping[int, TablePlan]
    after: Mapping[int, TablePlan]
    tracker: bytes
    types: TypeOptions
    moves: Moves = field(default_factory=Moves)
    version: int = 0
    origins: Mapping[int, frozenset[int]] = field(default_factory=dict)
    placed: frozenset[int] = frozenset()

    def version_of(self, table_id: int) -> int:
        """The schema version by which rows of a table are looked at that were there. Who came while
        DROP PARTITION was at work may have seen a newer one, which the log tells."""
        return self.moves.before_hiding(table_id, self.version)


def placed_of(plans: Mapping[int, TablePlan]) -> tuple[int, ...]:
    """The tables whose keys have a partition in them."""
    return tuple(
        sorted(each for each, plan in plans.items() if plan.handle.kind is HandleKind.PLACED)
    )


def leaving_of(plans: Mapping[int, TablePlan]) -> tuple[tuple[int, int], ...]:
    """The columns that are hidden by now and still in the schema: it tells of them when they are
    gone, maybe in a later batch."""
    return tuple(
        (table_id, column.id)
        for table_id, plan in sorted(plans.items())
        for column in plan.info.columns
        if column.is_public and not column.hidden and not plan.shows(column)
    )


def mode_of(text: str) -> LakeMode:
    """Raises ConfigError."""
    found = next((each for each in MODES if each == text), None)
    if found is None:
        raise ConfigError(f"--mode {text}: expected {' or '.join(MODES)}")
    return found


class LakeManifest:
    """The small files of a lake. Raises ArchiveUnavailable where its store does not answer."""

    def __init__(self, place: LakeLocation, mode: LakeMode) -> None:
        self._place, self._mode = place, mode
        self.store = ArchiveStore.open(place.url, what="lake")

    def read(self) -> LakeTables:
        """What stands there; nothing where nothing was written yet. Raises ConfigError, Corrupt."""
        now = found(self.store, TABLES_NAME, LakeTables, self._place.shown)
        if now is None:
            return LakeTables(0, {}, self._place.kind, mode=self._mode)
        if now.format != self._place.kind:
            raise ConfigError(
                f"{self._place.shown} is a lake of {now.format}: --into"
                f" {now.format}:{self._place.shown}, or another directory"
            )
        if now.mode != self._mode:
            raise ConfigError(
                f"{self._place.shown} is a lake of the mode {now.mode}: --mode {now.mode}, or"
                " another directory"
            )
        return now

    def schema_at(self, commit_ts: int) -> bytes | None:
        """The upstream's schema at the end of the last batch, if that is this moment. Raises
        Corrupt."""
        kept = found(self.store, f"{_SCHEMAS}/{commit_ts}", msgspec.Raw, self._place.shown)
        return None if kept is None else bytes(kept)

    def columns_at(self, commit_ts: int) -> dict[str, pa.Schema]:
        """The columns of a changelog then, in the same way. Raises Corrupt."""
        name = f"{_SCHEMAS}/{commit_ts}{_COLUMNS}"
        kept = found(self.store, name, dict[str, bytes], self._place.shown) or {}
        try:
            return {each: pa.ipc.read_schema(pa.py_buffer(of)) for each, of in kept.items()}
        except (OSError, pa.ArrowException) as error:
            raise Corrupt(f"{self._place.shown}/{name}: {error}") from error

    def turn(self, now: LakeTables, tracker: bytes, columns: bytes = b"") -> None:
        """Makes these versions those that hold, and removes what no reader needs any more."""
        last = self.read()
        self.store.put(f"{_SCHEMAS}/{now.commit_ts}", tracker)
        if columns:
            self.store.put(f"{_SCHEMAS}/{now.commit_ts}{_COLUMNS}", columns)
        self.store.put(TABLES_NAME, msgspec.json.format(msgspec.json.encode(now), indent=1))
        kept = {each.directory for each in (*last.tables.values(), *now.tables.values())}
        for name in self.store.directories():
            if name.startswith(DIRECTORY) and name not in kept:
                self.store.remove_directory(name)
        for name in self.store.names(_SCHEMAS):
            if name.removesuffix(_COLUMNS) != str(now.commit_ts):
                self.store.remove(f"{_SCHEMAS}/{name}")

    def claim(self, mine: Claim, *, takes_over: bool = False) -> None:
        """Makes the lake this pipeline's, which it may be already. Raises PipelineStopped where it
        is another's."""
        claim_place(self.store, self._place.shown, mine, takes_over=takes_over)
