"""What whole transactions in source order cost: rows/s and CPU beside lanes by key.

Joined binlogs from memory into a private MariaDB with default durability, the ways in turn, the
median of the rounds. `ratio` is to four lanes by key, the default.

    python tests/bench/bench_consistency.py [--share 0.2] [--rounds 3] [load ...]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import tempfile
from pathlib import Path
from statistics import median

import structlog
import uvloop

from tests.bench.bench_apply import LOADS, through_the_sink
from tests.bench.load import Load
from tests.bench.whole_path import Cost
from tests.support.mariadb import MariaDb

WAYS = (("key", 4, False), ("key", 1, False), ("transaction", 1, True), ("transaction", 4, True))
"""Consistency, connections, whether transactions stay whole."""


def _measured(mariadb: MariaDb, load: Load, rounds: int) -> None:
    costs: dict[tuple[str, int], list[Cost]] = {(name, lanes): [] for name, lanes, _ in WAYS}
    for _ in range(rounds):
        for name, lanes, is_transactional in WAYS:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                work = through_the_sink(mariadb, load, lanes, is_transactional=is_transactional)
                costs[name, lanes].append(runner.run(work))
    rates = {way: load.rows / median(cost.took_s for cost in each) for way, each in costs.items()}
    for (name, lanes), each in costs.items():
        figure = {
            "bench": f"consistency_{load.name}_{name}_{lanes}",
            "value": round(rates[name, lanes]),
            "unit": "rows/s",
            "ratio": round(rates[name, lanes] / rates["key", 4], 2),
            "cpu_us_per_row": round(median(cost.own_s for cost in each) / load.rows * 1e6, 1),
            "mariadbd_us_per_row": round(median(c.server_s for c in each) / load.rows * 1e6, 1),
        }
        print(json.dumps(figure), flush=True)


def main() -> None:
    """Prints its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=0.2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("loads", nargs="*", metavar="load")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with tempfile.TemporaryDirectory() as directory:
        mariadb = MariaDb(Path(directory) / "mariadb", is_durable=True, pool_mb=512)
        mariadb.directory.mkdir()
        mariadb.start()
        try:
            for name in options.loads or ("inserts", "updates", "mixed"):
                _measured(mariadb, LOADS[name](options.share), options.rounds)
        finally:
            mariadb.stop()


if __name__ == "__main__":
    main()
