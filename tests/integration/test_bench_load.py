"""The load of `make bench`, in Go, against a node: what it says is what happened."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.pump_process import Load, PumpProcess, cpu_s, node
from tests.support.go_programs import built

pytestmark = pytest.mark.soak
PAIRS = 200


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Load:
    return Load(built("load", tmp_path_factory.mktemp("load")))


@pytest.fixture
def server(tmp_path: Path, load: Load) -> Iterator[PumpProcess]:
    made = node(tmp_path / "node", load)
    assert made.start() > 0
    yield made
    made.kill()


def test_what_was_written_is_pulled_in_order_and_survives_a_kill(
    server: PumpProcess, load: Load
) -> None:
    written = load.found("write", server.place, pairs=PAIRS, in_flight=8, connections=2)
    assert written["binlogs"] == 2 * PAIRS
    assert 0 < written["p50_ms"] <= written["p99_ms"]
    assert cpu_s(server.pid) > 0
    for _ in range(2):
        pulled = load.found("pull", server.place, after=int(written["after"]), count=PAIRS)
        assert pulled["transactions"] == PAIRS
        server.kill()
        server.start()


def test_each_transaction_comes_back_beside_others_at_their_rate(
    server: PumpProcess, load: Load
) -> None:
    found = load.found("lag", server.place, seconds=0.5, rate=5_000)
    assert found["transactions"] == 100
    assert found["lag_p50_ms"] <= found["lag_p99_ms"]
    assert 0 < found["beside_per_s"] <= 2 * 5_000


def test_who_is_not_there_or_ends_is_named(tmp_path: Path, load: Load) -> None:
    ended = PumpProcess(["/bin/sh", "-c", "echo no room >&2; exit 3"], 1, tmp_path / "log", load)
    with pytest.raises(RuntimeError, match="it ended: no room"):
        ended.start()
    with pytest.raises(RuntimeError, match="connection refused"):
        load.found("write", "127.0.0.1:1", pairs=1)
