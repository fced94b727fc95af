"""binlogd beside the Go Pump and the Go Drainer, row by row: `make bench`.

    python -m tests.bench.bench_table
    python -m tests.bench.bench_table --only pull start
    python -m tests.bench.bench_table --go-pump bin/pump

The load is written in Go (tests/interop/load) and runs on the same cores. CPU is that of the
server, from /proc. What the Go Pump is published to do stands beside each figure; with
`--go-pump`, a program of that name, it is measured in turns in this run instead, registered in a
binlogd that is its PD. A row of the Drainer is `bench_apply`, Pump and Drainer in one process.

Beside each row of writes stands what a bare server in Go took in the same turns: grpc-go, a record
appended with its CRC, one fdatasync for all that wait, and nothing else. It is the least that a
server in Go needs on this machine, and less than a Pump does.

Where other work took more than 15 % of the cores, no ratio to published figures is printed.
All rows take three minutes on two cores where nothing else runs, and eight at a load of 8;
a Go Pump doubles those that are not the Drainer's.
Exit code 1 when a row that was asked for could not be measured.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from binlogd import native
from tests.bench.figures import OTHERS, ROWS, Found, Missing, lines, table
from tests.bench.pump_process import (
    Load,
    OtherWork,
    PumpProcess,
    bare_server,
    cpu_s,
    go_pump,
    node,
)
from tests.support.go_programs import built

ROOT = Path(__file__).parents[2]
OURS, GO, BARE = "binlogd", "Go", "bare"
TURNS, SECONDS, LAG_SECONDS = 3, 2.0, 5.0
STORED = 250_000
"""Transactions, each two binlogs."""
BESIDE_PER_S, BESIDE_SHARE_MIN = 3_000, 0.9
FULL_SPEED_S = 2.0
DRAINER_S = 900.0


class TooBusy(RuntimeError):
    """What a row is about did not come about on this machine."""


class Contestant:
    """A program that is measured. It is started where a row needs it, once for the rows of writes,
    and once more for those that need STORED."""

    def __init__(self, load: Load, make: Callable[[str], PumpProcess]) -> None:
        self.load, self._make = load, make
        self._made: dict[str, PumpProcess] = {}
        self._stored_after = 0

    def server(self, name: str = "empty") -> PumpProcess:
        """It runs."""
        if name not in self._made:
            server = self._make(name)
            server.start()
            self._made[name] = server
        return self._made[name]

    def stored(self) -> tuple[PumpProcess, int]:
        """One that was given STORED and nothing else, and the commit_ts before the first."""
        server = self.server("stored")
        if not self._stored_after:
            self._stored_after = int(self.load.found("write", server.place, pairs=STORED)["after"])
        return server, self._stored_after

    def running(self) -> Iterator[int]:
        """Its processes."""
        return (each.pid for each in self._made.values() if each.is_running)

    def close(self) -> None:
        """Nothing of it runs on."""
        for server in self._made.values():
            server.kill()


Measure = Callable[[Contestant], Mapping[str, float]]


def _writes(in_flight: int, connections: int, size: int) -> Measure:
    def measure(contestant: Contestant) -> Mapping[str, float]:
        server = contestant.server()
        with _cpu_of(server) as spent_s:
            found = contestant.load.found(
                "write",
                server.place,
                in_flight=in_flight,
                connections=connections,
                size=size,
                seconds=SECONDS,
            )
        return {**found, "cpu_us": spent_s() * 1e6 / found["binlogs"]}

    return measure


def _waits(beside_per_s: int) -> Measure:
    def measure(contestant: Contestant) -> Mapping[str, float]:
        place = contestant.server().place
        found = contestant.load.found("lag", place, seconds=LAG_SECONDS, rate=beside_per_s)
        if found.get("beside_per_s", 0) < 2 * BESIDE_SHARE_MIN * beside_per_s:
            raise TooBusy(f"only {found['beside_per_s'] / 2:.0f} of {beside_per_s}/s were written")
        return found

    return measure


def _memory(contestant: Contestant) -> Mapping[str, float]:
    status = Path(f"/proc/{contestant.stored()[0].pid}/status").read_text()
    return {"mb": int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e6}


def _pull(contestant: Contestant) -> Mapping[str, float]:
    server, after = contestant.stored()
    with _cpu_of(server) as spent_s:
        found = contestant.load.found("pull", server.place, after=after, count=STORED)
    return {**found, "cpu_us": spent_s() * 1e6 / STORED}


def _start(contestant: Contestant) -> Mapping[str, float]:
    server, _ = contestant.stored()
    writing = contestant.load.begun("write", server.place)
    time.sleep(FULL_SPEED_S)
    server.kill()
    writing.communicate()  # it fails, as it must
    return {"seconds": server.start()}


WRITES: Mapping[str, Measure] = {
    "64_on_1": _writes(64, 1, 200),
    "64_on_4": _writes(64, 4, 200),
    "64_on_16": _writes(64, 16, 200),
    "256_on_4": _writes(256, 4, 200),
    "1_kb": _writes(64, 1, 1_000),
    "16_kb": _writes(64, 1, 16_000),
    "1_mb": _writes(8, 1, 1 << 20),
    "one_in_flight": _writes(1, 1, 200),
}
"""What a bare server can do, too."""
MEASURES: Mapping[str, Measure] = {
    **WRITES,
    "idle": _waits(0),
    "beside_3000": _waits(BESIDE_PER_S),
    "memory": _memory,
    "pull": _pull,
    "start": _start,
}
"""Of a Pump. That of a Drainer is `drained`."""
ONCE = frozenset({"memory"})
"""What a second turn would not find otherwise."""


@contextmanager
def _cpu_of(server: PumpProcess) -> Iterator[Callable[[], float]]:
    """Seconds that it has spent since."""
    begin_s = cpu_s(server.pid)
    yield lambda: cpu_s(server.pid) - begin_s


def in_turns(row: str, contestants: Mapping[str, Contestant], measure: Measure) -> dict[str, Found]:
    """The turns of each figure of each; one that fails is left out from then on."""
    turns: dict[str, list[Mapping[str, float]]] = {name: [] for name in contestants}
    failed: dict[str, Missing] = {}
    for _ in range(1 if row in ONCE else TURNS):
        for name, contestant in contestants.items():
            if name in failed:
                continue
            try:
                turns[name].append(measure(contestant))
            except (OSError, RuntimeError) as error:
                failed[name] = Missing(str(error), is_failure=not isinstance(error, TooBusy))
    return {
        name: failed.get(name) or {key: tuple(each[key] for each in some) for key in some[0]}
        for name, some in turns.items()
    }


def drained(load: str) -> Found:
    """`bench_apply` of one load."""
    words = [sys.executable, "-m", "tests.bench.bench_apply", load]
    try:
        run = subprocess.run(
            words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=DRAINER_S
        )
    except subprocess.TimeoutExpired:
        return Missing(f"no end within {DRAINER_S:.0f} s")
    if run.returncode:
        return Missing(run.stderr.strip().rpartition("\n")[2] or f"exit code {run.returncode}")
    found = json.loads(run.stdout)
    return {"per_s": (found["value"],), "cpu_us": (found["cpu_us_per_row"],)}


class Run:
    """One run of the table."""

    def __init__(self, only: frozenset[str], go_program: Path | None, directory: Path) -> None:
        self._only, self._go_program, self._directory = only, go_program, directory
        self._begin_s = time.perf_counter()
        self._made: Mapping[str, Contestant] | Missing | None = None

    def found(self) -> Mapping[str, Mapping[str, Found]]:
        """By program: of binlogd every row, of the others those that were measured."""
        found: dict[str, dict[str, Found]] = {name: {} for name in (OURS, GO, BARE)}
        with ExitStack() as stack:
            for row in ROWS:
                if row.name not in self._only:
                    found[OURS][row.name] = Missing("not asked for", is_failure=False)
                    continue
                self._say(f"{len(found[OURS]) + 1:2} of {len(ROWS)}: {row.what}")
                for program, each in self._row(row.name, stack).items():
                    found[program][row.name] = each
        self._say("done")
        return found

    def _row(self, name: str, stack: ExitStack) -> Mapping[str, Found]:
        """What was found of a row, with the share of the machine that other work took."""
        is_drainer = name not in MEASURES
        if not is_drainer and self._made is None:
            self._made = self._contestants(stack)
        made = {} if is_drainer or self._made is None else self._made
        if isinstance(made, Missing):
            return {OURS: made}
        others = OtherWork(lambda: (pid for each in made.values() for pid in each.running()))
        if is_drainer:
            each_found = {OURS: drained(name.removeprefix("drainer_"))}
        else:
            able = {who: one for who, one in made.items() if who != BARE or name in WRITES}
            each_found = in_turns(name, able, MEASURES[name])
        share = others.share()
        return {
            who: each if isinstance(each, Missing) else {**each, OTHERS: (share,)}
            for who, each in each_found.items()
        }

    def _contestants(self, stack: ExitStack) -> Mapping[str, Contestant] | Missing:
        """Who is measured, unless the load cannot be made here."""
        try:
            load = Load(program := built("load", self._directory))
        except pytest.skip.Exception as error:
            return Missing(str(error))
        made = {
            OURS: Contestant(load, lambda name: node(self._directory / name, load)),
            BARE: Contestant(
                load, lambda name: bare_server(program, self._directory / f"bare-{name}", load)
            ),
        }
        if pump := self._go_program:
            pd = node(self._directory / "pd", load)
            stack.callback(pd.kill)
            pd.start()
            made[GO] = Contestant(
                load, lambda name: go_pump(pump, self._directory / f"go-{name}", load, pd)
            )
        for contestant in made.values():
            stack.callback(contestant.close)
        return made

    def _say(self, what: str) -> None:
        print(f"{time.perf_counter() - self._begin_s:4.0f} s  {what}", file=sys.stderr, flush=True)


def heading() -> str:
    """What has to be known to believe the table."""
    return (
        f"binlogd {native.form()}, Python {platform.python_version()}, {os.cpu_count()} cores with "
        f"the client in Go and MariaDB on them, one-minute load {os.getloadavg()[0]:.1f} before.\n"
        f"What is published of Go is of two such cores on another day; "
        f"`make bench GO_PUMP=program` measures a Go Pump in turns with binlogd.\n"
        f"A bare server in Go, of this run, appends, syncs and answers, and does nothing else."
    )


def main() -> None:
    """Prints the table, and before it how far it is."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = [row.name for row in ROWS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="ROW")
    parser.add_argument("--go-pump", type=Path, metavar="PROGRAM", help="a Go Pump, in turns")
    told = parser.parse_args()
    head, only = heading(), frozenset(told.only)
    (ROOT / "build").mkdir(exist_ok=True)
    with TemporaryDirectory(dir=ROOT / "build") as place:  # on a disk, which /tmp may not be
        found = Run(only, told.go_pump, Path(place)).found()
    print(head, table(lines(found[OURS], found[GO], found[BARE])), sep="\n\n")
    sys.exit(any(isinstance(each, Missing) and each.is_failure for each in found[OURS].values()))


if __name__ == "__main__":
    main()
