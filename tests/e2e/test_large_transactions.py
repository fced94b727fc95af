"""Large transactions at once, from writers in processes of their own into MariaDB, killed in the
middle of each phase: every row is there once, and the process holds little of any of them."""

from __future__ import annotations

import asyncio
import json
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.bench.load import wide_setup
from tests.support.appliance import Appliance, into_mariadb
from tests.support.large_binlogs import memory_bytes
from tests.support.large_transactions import (
    Transaction,
    Writers,
    commit_all,
    replicated,
    set_up,
    transactions,
)
from tests.support.mariadb import MariaDb

MIB = 1 << 20
COUNT = 3
PATIENCE_S = 1500.0
LOOK_EVERY_S = 0.02


class Watched:
    """A node, and the most memory that any of its processes had."""

    def __init__(self, node: Appliance, limit_bytes: int) -> None:
        self.node, self._limit_bytes = node, limit_bytes
        self.most_bytes = self.most_resident_bytes = 0
        self.kills: list[str] = []
        self._is_over = threading.Event()

    def start(self) -> None:
        """What is above the limit is refused to the process."""
        self.node.start()
        if self._limit_bytes:
            limits = self._limit_bytes, self._limit_bytes
            resource.prlimit(self.node.pid, resource.RLIMIT_DATA, limits)

    def kill(self, when: str) -> None:
        self.node.kill()
        self.kills.append(when)

    @contextmanager
    def looked_at(self) -> Iterator[None]:
        looking = threading.Thread(target=self._look)
        looking.start()
        try:
            yield
        finally:
            self._is_over.set()
            looking.join()

    def _look(self) -> None:
        while not self._is_over.wait(LOOK_EVERY_S):
            try:
                anonymous = memory_bytes(self.node.pid, "RssAnon")
                resident = memory_bytes(self.node.pid, "VmHWM")
            except (OSError, AssertionError):
                continue  # between two lives
            self.most_bytes = max(self.most_bytes, anonymous)
            self.most_resident_bytes = max(self.most_resident_bytes, resident)

    def size_of(self, where: str) -> int:
        """Bytes of the files of this pattern below the node's directory."""
        total = 0
        for path in self.node.directory.glob(where):
            try:
                total += path.stat().st_size
            except FileNotFoundError:
                continue  # it has become a segment
        return total

    def until(self, condition: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline_s, self.node.log()
            time.sleep(LOOK_EVERY_S)

    def applied(self, rows: int) -> None:
        """Returns when so many rows were applied in this life, or all there are."""

        def is_there(status: dict[str, Any]) -> bool:
            now = status["drainer"]
            assert now["state"] != "stuck", now["error"]
            return bool(now["rows"] >= rows or status["lag_s"] == 0)

        self.node.wait(is_there, timeout_s=PATIENCE_S)


def killed_on_the_way(node: Watched, writers: Writers, sent: list[Transaction]) -> None:
    """Once while it receives, once while the relay log is written, once while lanes apply."""
    size_bytes, _ = sent[0].payload()
    writers.halfway(PATIENCE_S)
    node.until(lambda: node.size_of("data/pump/*/value/*.spool") > size_bytes)
    node.kill("receiving")
    node.start()
    assert node.size_of("data/pump/*/value/*.spool") < size_bytes, "what was left over is there"
    writers.go_on()
    writers.done(PATIENCE_S)
    asyncio.run(commit_all(node.node.target, sent))
    node.until(lambda: node.size_of("relay/*.log") > size_bytes // 2)
    node.kill("relaying")
    node.start()
    node.applied(sent[0].rows // 3)
    node.kill("applying")
    node.start()


@pytest.mark.parametrize(
    ("size_mib", "columns", "limit_mib", "grown_mib"),
    [
        (24, 60, 0, 64),
        pytest.param(1024, 8, 384, 200, marks=[pytest.mark.soak, pytest.mark.timeout(3600)]),
    ],
)
def test_large_transactions_at_once_are_replicated_whole_and_never_held(
    mariadb: MariaDb, tmp_path: Path, size_mib: int, columns: int, limit_mib: int, grown_mib: int
) -> None:
    load = wide_setup(columns)
    sent = transactions(load, COUNT, size_mib * MIB, columns)
    relay = str(tmp_path / "relay")
    syncer = into_mariadb(mariadb, lanes=2, relay=relay)
    node = Appliance(tmp_path, history=load.history, syncer=syncer)
    with node.config_file.open("a") as file:
        file.write('memory-budget = "64 MiB"\n')
    watch = Watched(node, limit_mib * MIB)
    writers: Writers | None = None
    try:
        with watch.looked_at():
            watch.start()
            asyncio.run(set_up(node.target, load))
            node.wait_until_applied(load.setup[-1].commit_ts)
            begin_bytes = watch.most_bytes
            writers = Writers(node.target, sent)
            killed_on_the_way(watch, writers, sent)
            node.wait_until_applied(sent[-1].commit_ts, timeout_s=PATIENCE_S)
        assert node.stop() == 0
    finally:
        node.close()
        if writers is not None:
            writers.close()
    figures = {
        "anonymous_mib_at_rest": begin_bytes // MIB,
        "anonymous_mib_at_most": watch.most_bytes // MIB,
        "resident_mib_at_most": watch.most_resident_bytes // MIB,
        "killed": watch.kills,
    }
    print(json.dumps(figures))  # noqa: T201 - for docs/PERFORMANCE.md
    wanted = [each.expected() for each in sent]
    rows, checksum = sum(each.rows for each in wanted), sum(each.checksum for each in wanted)
    assert replicated(mariadb, columns) == (rows, checksum)
    assert watch.most_bytes - begin_bytes <= grown_mib * MIB
