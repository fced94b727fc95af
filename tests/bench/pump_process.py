"""A server in a process of its own: binlogd, the Go Pump or a bare one; and its load, in Go."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from binlogd.host.privacy import environment_of_children
from tests.support.machine import free_port

CALL_S = 300.0
"""The longest that one call of the load may take."""
HOST, CLUSTER = "127.0.0.1", 6_791_641_053_252_586_769
_CPU = Path("/proc/stat")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_LOOK_EVERY_S = 0.01
_SAID_CHARS = 300


def cpu_s(pid: int) -> float:
    """Processor time of a process and its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def machine_s() -> float:
    """Processor time of everybody on this machine, and what its host took away."""
    user, nice, system, _, _, *others = map(int, _CPU.read_text().split("\n", 1)[0].split()[1:9])
    return (user + nice + system + sum(others)) / _TICKS_PER_S


class OtherWork:
    """What others did on this machine since it was made: its share of all cores, 0 to 1."""

    def __init__(self, running: Callable[[], Iterable[int]]) -> None:
        """`running` tells the processes of ours that have not ended yet."""
        self._running = running
        self._begin = self._now()

    def share(self) -> float:
        """Since it was made."""
        passed_s, all_s, ours_s = (
            now - then for now, then in zip(self._now(), self._begin, strict=True)
        )
        return max(0.0, all_s - ours_s) / (passed_s * (os.cpu_count() or 1))

    def _now(self) -> tuple[float, float, float]:
        """Children that have ended are counted by the system, with theirs."""
        ended_s = sum(os.times()[:4])
        return time.perf_counter(), machine_s(), ended_s + sum(map(cpu_s, self._running()))


class PumpProcess:
    """A server that is started, killed, and started again where it was."""

    def __init__(self, words: Sequence[str], port: int, log: Path, load: Load) -> None:
        self.place, self._words = f"{HOST}:{port}", words
        self._log, self._load = log, load
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        """Whether it is there."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Of the process that was started last."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> float:
        """Starts it; seconds until it has accepted a transaction. Raises RuntimeError."""
        probe = self._load.begun("probe", self.place)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._words, stdout=log, stderr=log, env=environment_of_children(os.environ)
            )
        try:
            while probe.poll() is None:  # ends with the probe, which has a limit, or the server
                if self._process.poll() is not None:
                    probe.kill()
                    probe.communicate()
                    raise RuntimeError(f"it ended: {_end_of(self._log.read_text())}")
                time.sleep(_LOOK_EVERY_S)
            return self._load.ended(probe)["seconds"]
        except RuntimeError:
            self.kill()
            raise

    def kill(self) -> None:
        """SIGKILL, and gone on return."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class Load:
    """The program that writes and pulls."""

    def __init__(self, program: Path) -> None:
        self._program = program

    def found(self, what: str, place: str, **flags: float) -> dict[str, float]:
        """One run to its end. Raises RuntimeError."""
        return self.ended(self.begun(what, place, **flags))

    def begun(self, what: str, place: str, **flags: float) -> subprocess.Popen[str]:
        """One run that goes on beside what else is done."""
        words = [f"-{name.replace('_', '-')}={value}" for name, value in flags.items()]
        return subprocess.Popen(
            [self._program, what, place, str(CLUSTER), *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ended(self, run: subprocess.Popen[str]) -> dict[str, float]:
        """What it found. Raises RuntimeError with what it says when it failed."""
        try:
            out, err = run.communicate(timeout=CALL_S)
        except subprocess.TimeoutExpired as error:
            run.kill()
            run.communicate()
            raise RuntimeError(f"no end within {CALL_S:.0f} s") from error
        if run.returncode:
            raise RuntimeError(_end_of(err))
        found: dict[str, float] = json.loads(out)
        return found


def node(directory: Path, load: Load) -> PumpProcess:
    """A binlogd on its defaults that receives and does not replicate."""
    directory.mkdir()
    port, config, history = free_port(), directory / "binlogd.toml", directory / "history.json"
    history.write_text("[]")
    config.write_text(
        f'data-dir = "{directory / "data"}"\naddr = "{HOST}:{port}"\nroles = ["pump"]\n'
        f'[upstream]\nschema-history = "{history}"\ntso = "clock"\ncluster-id = {CLUSTER}\n'
    )
    words = [sys.executable, "-m", "binlogd", "serve", "--config", str(config)]
    return PumpProcess(words, port, directory / "log", load)


def bare_server(load_program: Path, directory: Path, load: Load) -> PumpProcess:
    """What appends, syncs and answers, in Go (tests/interop/load/bare.go)."""
    directory.mkdir()
    port = free_port()
    words = [str(load_program), "bare", f"{HOST}:{port}", str(directory)]
    return PumpProcess(words, port, directory / "log", load)


def go_pump(program: Path, directory: Path, load: Load, pd: PumpProcess) -> PumpProcess:
    """A Go Pump on its defaults, registered in the PD that `pd` is to it."""
    directory.mkdir()
    port = free_port()
    words = [
        str(program),
        f"-addr={HOST}:{port}",
        f"-pd-urls=http://{pd.place}",
        f"-data-dir={directory / 'data'}",
    ]
    return PumpProcess(words, port, directory / "log", load)


def _end_of(said: str) -> str:
    last = said.strip().rpartition("\n")[2]
    return last[-_SAID_CHARS:] or "nothing"
