"""Rows that a DDL took away or to another table, without a binlog: by partitions, not by rows.

A row in the log names its table, and its schema version which DDL it comes after. So the partition
that it was written to is found out from its values and the partitions as they were then, and from
there it is followed through every later DDL: a partition that is dropped or truncated ends it, one
that is exchanged takes it to another table, one that is reorganized puts it elsewhere.

Invariant. A table holds at its end exactly the rows whose last change `home` takes to it.
Why it holds. Every change of a row, and the row that it found, is followed in the same way, by
values that decide its partition; a change that takes a row to another home ends it in the old one.
Of tables that are exchanged a key tells the partition, as it holds the columns that decide it
(`moving` refuses others), so no two rows of one home have the same.
Source: pingcap/tidb table/tables/tables.go (getMutation), ddl/partition.go.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

from binlogd.errors import CorruptRow
from binlogd.snapshot.log.rowkey import NUMBER_BYTES, Handle, HandleKind, placed
from binlogd.tidb.model import Table, TableAt
from binlogd.tidb.partitions import PartitionLookup, Unplaceable
from binlogd.tidb.row import RowDecoder, Value
from binlogd.tidb.turns import Turn
from binlogd.wire.mutation import Mutation


class PartitionsEnded(NamedTuple):
    """DROP or TRUNCATE PARTITION: rows in these partitions are no more. Where rows came to other
    partitions while it was at work, `began_ts` says since when, and `hidden_version` from which
    schema version on; else both are 0."""

    version: int
    table_id: int
    ids: frozenset[int]
    began_ts: int = 0
    hidden_version: int = 0


class PartitionsSpread(NamedTuple):
    """REORGANIZE PARTITION, or another partitioning under a new table id: rows in these partitions
    (None: all rows) lie where `after` has them."""

    version: int
    table_id: int
    ids: frozenset[int] | None
    after: Table


class Swapped(NamedTuple):
    """EXCHANGE PARTITION: what was in the partition is a table of that id from now on, and what was
    in the plain table is the partition of `after`, which has the id of that table now.

    Rows of the plain table that do not lie in the partition had gone before: TiDB looks at each."""

    version: int
    table_id: int
    partition_id: int
    plain_id: int
    after: Table


Move = PartitionsEnded | PartitionsSpread | Swapped


class Twice(NamedTuple):
    """REORGANIZE PARTITION of a table without a key: rows inserted into these partitions from
    `switched` on went to the new one first and to the old one behind it, before that the other way
    round. What went to an old one after `copied_ts` is gone with it."""

    version: int
    switched: int
    table_id: int
    ids: frozenset[int]
    copied_ts: int


class Home(NamedTuple):
    """Where a row is at the end: the table, and its partition or the table once more."""

    table_id: int
    place: int


def ids_of(move: Move) -> tuple[int, ...]:
    """The tables that a move is about."""
    if isinstance(move, Swapped):
        return move.table_id, move.plain_id, move.partition_id
    if isinstance(move, PartitionsSpread):
        return move.table_id, move.after.id
    return (move.table_id,)


@dataclass(frozen=True, slots=True)
class Moves:
    """Every move of a log, in the order of schema versions.

    `known` are the tables that any is about, each as it is from a schema version on. `handles` tell
    their rows apart.
    """

    moves: tuple[Move, ...] = ()
    known: Mapping[int, tuple[tuple[int, Table], ...]] = field(default_factory=dict)
    handles: Mapping[int, Handle] = field(default_factory=dict)
    turns: Mapping[int, tuple[Turn, ...]] = field(default_factory=dict)
    twice: tuple[Twice, ...] = ()

    def concerns(self, table_id: int, version: int) -> bool:
        """Whether rows of this table and schema version may not be where they say."""
        if table_id not in self.known:
            return False
        is_placed = self.handles[table_id].kind is HandleKind.PLACED
        return is_placed or version < self.moves[-1].version

    def before_hiding(self, table_id: int, version: int) -> int:
        """The last schema version in which a row saw every partition that DROP was to take; the
        given one where it still saw them all. Who fits no partition that is left had seen its own.
        """
        hidden = (
            each.hidden_version - 1
            for each in self.moves
            if isinstance(each, PartitionsEnded)
            and each.table_id == table_id
            and each.hidden_version
            if each.version > version
        )
        return min(version, *hidden, version)

    def key(self, home: Home, key: bytes) -> bytes:
        """The key of a row in its home, by the one that it has in the log or in another home."""
        kind = self.handles[home.table_id].kind
        if kind is HandleKind.PLACED:
            return placed(key[:NUMBER_BYTES], home.place)
        return key[:NUMBER_BYTES] if kind is HandleKind.HIDDEN else key

    def seen(self, table_id: int, version: int, commit_ts: int) -> int:
        """The schema version by which the partition of a row is looked for (see `tidb.turns`)."""
        for turn in self.turns.get(table_id, ()):
            version = turn.seen(version, commit_ts)
        return version

    def followed(self) -> Followed:
        """Who follows rows; for one worker."""
        return Followed(self)


class Followed:
    """Follows rows; keeps what is dear to make."""

    def __init__(self, moves: Moves) -> None:
        self._moves = moves
        self._at: dict[tuple[int, int], _At] = {}
        self._after: dict[int, PartitionLookup] = {}

    def home(self, table_id: int, version: int, row: bytes) -> Home | None:
        """Where a row (as it is inserted) of this version is at the end, if its table is still
        there; None for one that is no more. Raises CorruptRow."""
        values = self._at_version(table_id, version).decoder.insert(row)
        return self.home_of(table_id, version, values)

    def gone_twins(self, run_of: Mutation, version: int, commit_ts: int) -> set[int]:
        """Which of the inserted rows are those of two that went with an old partition.
        Raises CorruptRow."""
        twins = self.twins(run_of.table_id, version, commit_ts)
        if twins is None:
            return set()
        found = ((number, twins.look(row)) for number, row in enumerate(run_of.inserted))
        return {number - before for number, before in found if before is not None}

    def twins(self, table_id: int, version: int, commit_ts: int) -> Twins | None:
        """Who looks at the rows that a transaction inserts into a table; None where none of them
        is written twice."""
        for twice in self._moves.twice:
            is_at_work = version < twice.version and commit_ts > twice.copied_ts
            if twice.table_id == table_id and is_at_work:
                return Twins(self._at_version(table_id, version), twice, version)
        return None

    def place_at(self, table_id: int, version: int, row: bytes) -> int:
        """The partition that a row (as it is inserted) lies in by the table of this version.
        Raises CorruptRow."""
        at = self._at_version(table_id, version)
        try:
            return at.places.find(at.decoder.insert(row)) if at.places is not None else table_id
        except Unplaceable as error:
            raise CorruptRow(f"{error} (table id {table_id})") from error

    def deciding(self, table_id: int, version: int) -> tuple[int, ...]:
        """The ids of the columns that `home_of` may look at."""
        places = [self._at_version(table_id, version).places]
        for number, move in enumerate(self._moves.moves):
            if move.version <= version or isinstance(move, PartitionsEnded):
                continue
            if move.after.partitioning is not None:
                places.append(self._places(number, move.after))
        return tuple({each: None for held in places if held for each in held.column_ids})

    def home_of(self, table_id: int, version: int, values: Mapping[int, Value]) -> Home | None:
        """Where a row is whose values are known, as `home`. Raises CorruptRow."""
        try:
            places = self._at_version(table_id, version).places
            place = places.look(values) if places is not None else table_id
            if places is not None and place is None:
                version = self._moves.before_hiding(table_id, version)
                places = self._at_version(table_id, version).places or places
                place = places.find(values)
            assert place is not None, "found, or raised"
            return self._follow(table_id, version, place, values)
        except Unplaceable as error:
            raise CorruptRow(f"{error} (table id {table_id})") from error

    def _follow(
        self, owner: int, version: int, place: int, values: Mapping[int, Value]
    ) -> Home | None:
        for number, move in enumerate(self._moves.moves):
            if move.version <= version:
                continue
            if isinstance(move, Swapped):
                if owner == move.table_id and place == move.partition_id:
                    owner = place
                elif owner == move.plain_id:
                    owner, place = move.table_id, move.plain_id
                    if self._places(number, move.after).look(values) != place:
                        return None
            elif owner != move.table_id or (move.ids is not None and place not in move.ids):
                continue
            elif isinstance(move, PartitionsEnded):
                return None
            elif move.after.partitioning is None:
                owner = place = move.after.id
            else:
                owner, place = move.after.id, self._places(number, move.after).find(values)
        return Home(owner, place)

    def _places(self, number: int, after: Table) -> PartitionLookup:
        places = self._after.get(number)
        if places is None:
            places = self._after[number] = PartitionLookup(after)
        return places

    def _at_version(self, table_id: int, version: int) -> _At:
        states = self._moves.known[table_id]
        number = max(0, bisect_right(states, version, key=itemgetter(0)) - 1)
        at = self._at.get((table_id, number))
        if at is None:
            info = states[number][1]
            seen = TableAt("", info, version, None, {}, may_lack_columns=True)
            at = self._at[table_id, number] = _At(RowDecoder(seen), _places_of(info))
        return at


class _At(NamedTuple):
    """A table from a schema version on; `places` is None where it has no partitions, or none that
    any move is about."""

    decoder: RowDecoder
    places: PartitionLookup | None


class Twins:
    """Finds, among the rows that one transaction inserts into a table, those that TiDB wrote into
    an old and a new partition, one behind the other."""

    def __init__(self, at: _At, twice: Twice, version: int) -> None:
        self._at, self._ids = at, twice.ids
        self._before = 0 if version >= twice.switched else 1
        self._previous: dict[int, Value] | None = None

    def look(self, row: bytes) -> int | None:
        """How many rows before the next one that lies which went with an old partition: 0 for the
        row itself; None for neither. Raises CorruptRow."""
        values, places = self._at.decoder.insert(row), self._at.places
        if values == self._previous:
            self._previous = None
            return self._before
        is_old = places is not None and places.look(values) in self._ids
        self._previous = values if is_old else None
        return None


def _places_of(info: Table) -> PartitionLookup | None:
    """A move of partitions that nobody tells apart would not be told; one of all rows may be."""
    try:
        return PartitionLookup(info) if info.partitioning is not None else None
    except Unplaceable:
        return None
