"""Row bytes to key and SQL literal: the fast decoders, and the generic one.

Rows as in `load`: five columns, 230 bytes. CPU time of one core, best round.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from time import process_time

from binlogd import native
from binlogd.drainer.rows.literals import laid_out
from binlogd.drainer.rows.plan import KeyColumn, generic, written_columns
from binlogd.drainer.txn import Dml, TableChange
from tests.bench.bench_translate import prepared
from tests.bench.load import Load, inserts, mixed, updates
from tests.support.decoding import decoded

ROUNDS = 5
ROWS = 20_000


def best_us(decode: Callable[[bytes], object], rows: Sequence[bytes]) -> float:
    """Microseconds a row."""
    best_s = 1e9
    for _ in range(ROUNDS):
        begin_s = process_time()
        for row in rows:
            decode(row)
        best_s = min(best_s, process_time() - begin_s)
    return best_s / len(rows) * 1e6


def first_table(load: Load) -> tuple[TableChange, list[TableChange]]:
    """The changes of the load's first table."""
    translator = prepared(load)
    txns = [translator.translate(decoded(binlog)) for binlog in load.binlogs]
    changes = [change for txn in txns if isinstance(txn, Dml) for change in txn.changes]
    first = changes[0]
    return first, [each for each in changes if each.table.info.id == first.table.info.id]


def main() -> None:
    for load in (inserts(ROWS), updates(ROWS, 1000), mixed(ROWS * 5, 2, 1000)):
        first, changes = first_table(load)
        info = first.table.info
        columns, key = written_columns(info), [KeyColumn(info.columns[0])]
        fast, slow = laid_out(first.table, columns, key), generic(first.table, columns, key)
        assert fast is not None
        for kind in ("insert", "update", "delete"):
            field = {"insert": "inserted", "update": "updated", "delete": "deleted"}[kind]
            rows = [row for change in changes for row in getattr(change.mutation, field)]
            if not rows or (load.name == "mixed") != (kind == "delete"):
                continue
            fast_us, slow_us = (
                best_us(getattr(fast, kind), rows),
                best_us(getattr(slow, kind), rows),
            )
            figure = {
                "bench": f"decode_{kind}",
                "value": round(1e6 / fast_us),
                "unit": "rows/s",
                "form": native.form(),
                "cpu_us_per_row": round(fast_us, 2),
                "generic_rows_per_s": round(1e6 / slow_us),
                "ratio": round(slow_us / fast_us, 2),
            }
            print(json.dumps(figure))


if __name__ == "__main__":
    main()
