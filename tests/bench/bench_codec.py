"""How fast rows of a binlog are decoded and encoded on one core, one JSON line per figure.

The row is the one of the apply benchmarks: INT key, VARCHAR(200), DECIMAL(10,2), DATETIME, BIGINT.
An update has two images, so its figure is about half of an insert's. CPU time, best of some rounds.
"""

from __future__ import annotations

import json
import timeit
from collections.abc import Callable
from time import process_time

from binlogd.tidb.columns import Value
from binlogd.tidb.jsonb import json_bytes, json_text
from binlogd.tidb.kinds import FLAG_NOT_NULL, FLAG_PRIMARY_KEY, Tp
from binlogd.tidb.model import Column, FieldType, Table, TableAt
from binlogd.tidb.row import RowDecoder, encode_delete, encode_insert, encode_update

ROWS = 2_000
ROUNDS = 7
KINDS = (
    FieldType(Tp.LONG, FLAG_PRIMARY_KEY | FLAG_NOT_NULL),
    FieldType(Tp.VARCHAR, 0, 200, charset="utf8mb4", collate="utf8mb4_bin"),
    FieldType(Tp.NEW_DECIMAL, 0, 10, 2),
    FieldType(Tp.DATETIME, 0, 19, 0),
    FieldType(Tp.LONGLONG),
)
TABLE = Table(
    id=1,
    name="t",
    columns=tuple(Column(n + 1, f"c{n}", n, kind) for n, kind in enumerate(KINDS)),
    pk_is_handle=True,
)
DOCUMENT = json_bytes('{"key": "value", "list": [1, 2.5, null, true], "nested": {"a": "b"}}')


def values_of(number: int) -> dict[int, Value]:
    """A row that differs from its neighbours in every column."""
    return {
        1: number,
        2: (b"%06d " % number) * 28,
        3: f"{number}.{number % 100:02d}",
        4: f"2024-03-{number % 28 + 1:02d} 10:{number // 60 % 60:02d}:{number % 60:02d}",
        5: number * 1_000_003,
    }


def report(bench: str, work: Callable[[], object]) -> None:
    """Runs `work` in several rounds and prints rows/s of the fastest."""
    seconds = min(timeit.timeit(work, number=1, timer=process_time) for _ in range(ROUNDS))
    print(json.dumps({"bench": bench, "value": round(ROWS / seconds), "unit": "rows/s"}))


def main() -> None:
    """Measures and prints."""
    decoder = RowDecoder(TableAt("test", TABLE, 1, None, {}, may_lack_columns=False))
    values = [values_of(number) for number in range(1, ROWS + 1)]
    inserts = [encode_insert(TABLE, each, handle=None) for each in values]
    updates = [encode_update(TABLE, each, each, handle=None) for each in values]
    deletes = [encode_delete(TABLE, each, handle=None) for each in values]
    report("codec_decode_insert", lambda: [decoder.insert(row) for row in inserts])
    report("codec_decode_update", lambda: [decoder.update(row) for row in updates])
    report("codec_decode_delete", lambda: [decoder.delete(row) for row in deletes])
    report(
        "codec_encode_insert",
        lambda: [encode_insert(TABLE, each, handle=None) for each in values],
    )
    report("codec_json_text", lambda: [json_text(DOCUMENT) for _ in range(ROWS)])


if __name__ == "__main__":
    main()
