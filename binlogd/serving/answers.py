"""What is answered as JSON beside the status (binlogd/status.py): made as these classes, and the
description of the API is generated from them; and what is asked of who looks transactions up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

import msgspec
from msgspec import Meta, Struct

from binlogd.tso import MAX_TS

REFUSED_CODE, DONE_CODE = 3, 200
REF = "#/components/schemas/{name}"

TsText = Annotated[str, Meta(extra_json_schema={"pattern": "^[0-9]{0,19}$"})]


class Reply(Struct, frozen=True):
    """The answer to an operator's request, in the original's form; 200 is done, 3 is refused."""

    message: str
    code: Annotated[int, Meta(extra_json_schema={"enum": [DONE_CODE, REFUSED_CODE]})]
    data: Any = None

    @classmethod
    def refused(cls, why: object) -> Self:
        """Nothing is done."""
        return cls(str(why), REFUSED_CODE)


class Trouble(Struct, frozen=True):
    """Why there is no other answer."""

    message: str


class FoundColumn(Struct, frozen=True):
    """`old` and `new` as they would stand in a statement; None where the row has none."""

    name: str
    type: str
    key: bool
    old: str | None
    new: str | None
    changed: bool


class FoundRow(Struct, frozen=True):
    """A row that a transaction changed."""

    kind: Annotated[str, Meta(extra_json_schema={"enum": ["insert", "update", "delete"]})]
    database: str
    table: str
    columns: Sequence[FoundColumn]


class FoundDdl(Struct, frozen=True):
    """The statement of a transaction that is a DDL."""

    database: str
    sql: str


class FoundTransaction(Struct, frozen=True, kw_only=True):
    """A transaction as a change, with as many rows as are shown."""

    commit_ts: TsText
    start_ts: TsText
    time: str
    size_bytes: int
    place: str
    note: str
    ddl: FoundDdl | None
    rows: Sequence[FoundRow]
    has_more_rows: bool


class FoundRecord(Struct, frozen=True, kw_only=True):
    """A record of the log that carries the timestamp, where no transaction does."""

    kind: str
    start_ts: TsText
    time: str
    size_bytes: int
    detail: str
    place: str


class FoundMoment(Struct, frozen=True):
    """A timestamp, and its time."""

    ts: TsText
    time: str


class Question(Struct, frozen=True, forbid_unknown_fields=True):
    """What is looked for: `ts` (a commit_ts or start_ts); or `table` and `row`, the newest first;
    or from `start` on, in commit order; without any of these the newest of all.

    `row` is column names and their values as text. `paths` are filled in by the Finder.
    """

    ts: int = 0
    table: str = ""
    row: dict[str, str] = {}
    start: int = 0
    stop: int = MAX_TS
    limit: int = 20
    paths: tuple[str, ...] = ()
    seconds: float = 15.0
    memory_bytes_max: int = 512 << 20


class Indexing(Struct, frozen=True):
    """What the child that keeps the row index is told."""

    data_dir: str
    bytes_max: int = 128 << 20
    memory_bytes_max: int = 512 << 20


class LookUp(Struct, frozen=True, kw_only=True):
    """What was found, and how far was looked; timestamps are text, because they exceed 2^53."""

    transactions: Sequence[FoundTransaction]
    records: Sequence[FoundRecord]
    looked_from: FoundMoment | None
    looked_to: FoundMoment | None
    complete: bool


def component_schemas(
    kinds: Sequence[Any], partly: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, Any]]:
    """JSON schemas of classes and what they hold, by name. Every field is always sent, but for
    those of `partly`, which names the fields that are."""
    _, found = msgspec.json.schema_components(kinds, ref_template=REF)
    for name, schema in found.items():
        schema["required"] = sorted(partly.get(name, schema["properties"]))
        for each in schema["properties"].values():
            each.pop("default", None)
    return found
