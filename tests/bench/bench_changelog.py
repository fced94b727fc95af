"""What a batch costs a lake in each mode, behind the reading of the log and what Spark does: row
changes for each CPU second of one process, and the seconds of each step.

    python -m tests.bench.bench_changelog [row changes]

Four batches of one log into one table, as `bench_source` has it; so an upsert finds files to look
at from the second one on.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from binlogd.archive.task import Task
from binlogd.archive.upload import archive
from binlogd.spark.inputs import open_input
from binlogd.spark.lake import appending, merging
from binlogd.spark.lake.manifest import MODES
from binlogd.spark.lake.moving import Lake
from binlogd.spark.lake.place import KINDS, place_of
from binlogd.spark.request import request
from binlogd.tso import Tso
from tests.bench.bench_export import history, log
from tests.support.data_directory import write_log
from tests.support.lakes import Pipeline
from tests.support.logged import Logged

T = TypeVar("T")

CHANGES, BATCHES = 100_000, 4


SPENT: dict[str, float] = {}


def timed(name: str, work: Callable[..., Iterator[T]]) -> Callable[..., Iterator[T]]:
    """The same, with the CPU seconds of it noted."""

    def run(*words: Any) -> Iterator[T]:
        items = work(*words)
        while True:  # ends with the work
            begin_s = time.process_time()
            item = next(items, None)
            SPENT[name] = SPENT.get(name, 0) + time.process_time() - begin_s
            if item is None:
                return
            yield item

    return run


def main() -> None:
    """Prints one JSON line per figure."""
    changes = int(sys.argv[1]) if len(sys.argv) > 1 else CHANGES
    for of, names in ((merging, ("spread", "merge")), (appending, ("write", "commit"))):
        for each in names:
            setattr(of, each, timed(each, getattr(of, each)))
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        logged = Logged(directory / "data", directory / "history.json", None)  # type: ignore[arg-type]  # no workload
        write_log(logged.data_dir, log(changes), segment_bytes=8 << 20)
        logged.history.write_bytes(history(1))
        url = str(directory / "archive")
        archive(
            Task(
                data_dir=str(logged.data_dir), url=url, history=str(logged.history), with_open=True
            )
        )
        source = open_input(request({"path": url, "form": "changes"}))
        upto = source.resolved_ts()
        ends = [
            source.reach(Tso(0), upto, changes // 5 * part // BATCHES) for part in range(1, BATCHES)
        ]
        for kind in KINDS:
            for mode in MODES:
                lake = Lake(place_of(f"{kind}:{directory / f'{kind}-{mode}'}"), mode)
                pipeline, start = Pipeline(logged, lake, path=url), 0
                SPENT.clear()
                for end in (*ends, upto):
                    pipeline.run(start, end)
                    start = end
                rate = round(changes / sum(SPENT.values()))
                parts = {name: round(spent, 2) for name, spent in SPENT.items()}
                print(json.dumps({"kind": kind, "mode": mode, "value": rate, **parts}), flush=True)


if __name__ == "__main__":
    main()
