"""How a table is partitioned, as TiDB describes it in JSON.

Source: pingcap/tidb parser/model/model.go (PartitionInfo).
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class Partition(NamedTuple):
    """A partition as TiDB writes it: upper bounds of a range, or the values of a list."""

    id: int
    less_than: tuple[str, ...] = ()
    in_values: tuple[tuple[str, ...], ...] = ()


class Partitioning(msgspec.Struct, frozen=True):
    """How the rows of a table are spread over partitions; `kind` as `kinds.PartitionKind`. Either
    `expr` or the names of `columns` tell by what."""

    kind: int
    expr: str
    columns: tuple[str, ...]
    parts: tuple[Partition, ...]


class NameJson(msgspec.Struct, frozen=True):
    """A name as it was written, and in lower case."""

    original: str = msgspec.field(name="O", default="")
    lower: str = msgspec.field(name="L", default="")


class _DefinitionJson(msgspec.Struct, frozen=True):
    id: int = 0
    less_than: tuple[str, ...] | None = None
    in_values: tuple[tuple[str, ...], ...] | None = None


class PartitionJson(msgspec.Struct, frozen=True):
    """The partitions of a table, as its TableInfo has them."""

    definitions: tuple[_DefinitionJson, ...] | None = None
    enable: bool = True
    type: int = 0
    expr: str = ""
    columns: tuple[NameJson, ...] | None = None

    def partitioning(self) -> Partitioning | None:
        """What it says; None for a table without partitions."""
        if not self.definitions:
            return None
        return Partitioning(
            self.type,
            self.expr,
            tuple(each.original for each in self.columns or ()),
            tuple(
                Partition(each.id, each.less_than or (), each.in_values or ())
                for each in self.definitions
            ),
        )

    @classmethod
    def of(cls, ids: tuple[int, ...], partitioning: Partitioning | None) -> PartitionJson | None:
        """The same as JSON; of partitions that nobody describes the ids."""
        if partitioning is None:
            definitions = tuple(_DefinitionJson(each) for each in ids)
            return cls(definitions) if definitions else None
        return cls(
            tuple(
                _DefinitionJson(each.id, each.less_than or None, each.in_values or None)
                for each in partitioning.parts
            ),
            type=partitioning.kind,
            expr=partitioning.expr,
            columns=tuple(NameJson(each, each.lower()) for each in partitioning.columns) or None,
        )
