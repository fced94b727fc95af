"""Single rows of one table as of the moment: values by column id, whatever version wrote them.

A column that a MODIFY COLUMN replaced has another id in older rows; its value there is converted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from binlogd.snapshot.log.rowkey import columns_of
from binlogd.snapshot.tables.catalog import TablePlan
from binlogd.snapshot.writing.row_arrays import Decoder
from binlogd.tidb.model import Column
from binlogd.tidb.rewrite import Convert, Unconvertible, converter
from binlogd.tidb.row import RowDecoder, Value
from binlogd.tidb.schema import SchemaTracker


class RowsAsOf:
    """Decodes rows of one table as of the moment, whatever schema version wrote them."""

    def __init__(self, plan: TablePlan, schemas: SchemaTracker) -> None:
        self._plan, self._schemas = plan, schemas
        self._decoders: dict[int, Decoder] = {}
        self._stand_ins = [
            (column.id, stand_ins)
            for column in plan.columns
            if (stand_ins := _stand_ins(column, plan))
        ]

    @property
    def has_stand_ins(self) -> bool:
        """Whether older columns may stand for some, so that each row needs a look of its own."""
        return bool(self._stand_ins)

    def decode(self, version: int, row: bytes) -> dict[int, Value]:
        """Values by column id. Raises CorruptRow, Unconvertible."""
        values = self.decoder(version).decode(row)
        if self._stand_ins:
            present = columns_of(self._plan.handle, row)
            for column_id, stand_ins in self._stand_ins:
                if column_id not in present:
                    _stand_in(values, column_id, stand_ins, present, version)
        return values

    def decoder(self, version: int) -> Decoder:
        """Who decodes rows of a schema version, but for stand-ins."""
        decoder = self._decoders.get(version)
        if decoder is None:
            table = self._schemas.table_at(self._plan.info.id, version)
            assert table is not None, "the catalog was made by the same tracker"
            rows = RowDecoder(replace(table, info=self._plan.info))
            decoder = Decoder(rows.insert, rows.defaults, frozenset(table.aliases))
            self._decoders[version] = decoder
        return decoder


class _StandIn(NamedTuple):
    """An older id of a column, the version that ended it, and the conversions from there."""

    column_id: int
    until: int
    conversions: list[Convert]


def _stand_ins(column: Column, plan: TablePlan) -> list[_StandIn]:
    """Newest first."""
    replaced = {each.new.id: each for each in plan.rewritten}
    found: list[_StandIn] = []
    chain: list[Convert] = []
    column_id = column.id
    while column_id in replaced:  # ids only grow, so the chain ends
        step = replaced[column_id]
        chain = [_converter(step.old, step.new), *chain]
        found.append(_StandIn(step.old.id, step.version, chain))
        column_id = step.old.id
    return found


def _converter(old: Column, new: Column) -> Convert:
    """A conversion that is refused only when a row needs it."""
    try:
        return converter(old, new)
    except Unconvertible as error:
        reason = str(error)

    def refuse(value: Value) -> Value:
        if value is None:
            return None
        raise Unconvertible(reason)

    return refuse


def _stand_in(
    values: dict[int, Value],
    column_id: int,
    stand_ins: list[_StandIn],
    present: set[int],
    version: int,
) -> None:
    """Puts in what a row of this version means by not having the column."""
    chosen: _StandIn | None = None
    for each in stand_ins:
        if version >= each.until or (chosen and chosen.column_id in present):
            break
        chosen = each
    if chosen is None:
        return
    value = values[chosen.column_id]
    for convert in chosen.conversions:
        value = convert(value)
    values[column_id] = value
