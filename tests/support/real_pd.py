"""A real PD of several members, each a process of its own.

The program is the pd-server of the module that tests/interop/pdserver names.
"""

from __future__ import annotations

import json
import signal
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.error import HTTPError

from binlogd.upstream.pd.members import Address
from tests.support.certificates import Authority
from tests.support.go_programs import built, say_modules
from tests.support.ports import free_port

PATIENCE_S = 180.0


def pd_server(directory: Path) -> Path:
    """The program; skips where it cannot be made from what is here."""
    package = "github.com/tikv/pd/cmd/pd-server"
    return built("pdserver", directory, "-tags=without_dashboard", package=package)


class RealPd:
    """The members, by name; `pd0` and so on are those that make the cluster."""

    def __init__(
        self, program: Path, directory: Path, count: int, authority: Authority | None = None
    ) -> None:
        say_modules(program)
        self._program, self._directory, self._authority = program, directory, authority
        self._ports = {f"pd{number}": (free_port(), free_port()) for number in range(count)}
        cluster = ",".join(f"{name}={self._url(name, 1)}" for name in self._ports)
        self._how = dict.fromkeys(self._ports, f"--initial-cluster={cluster}")
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    # --- where ------------------------------------------------------------------------------

    @property
    def urls(self) -> str:
        """As a configuration names the members."""
        return ",".join(self.url(name) for name in self._ports)

    @property
    def addresses(self) -> list[Address]:
        """Of all members."""
        return [self.address(name) for name in self._ports]

    def address(self, name: str) -> Address:
        """Where clients find a member."""
        return "127.0.0.1", self._ports[name][0]

    def url(self, name: str) -> str:
        """As a member tells it."""
        return self._url(name, 0)

    # --- what a test does to it ---------------------------------------------------------------

    def start(self, *names: str) -> None:
        """Starts these, or all; returns when each of them knows a leader."""
        started = names or tuple(self._ports)
        for name in started:
            self._launch(name)
        for name in started:
            self._wait(partial(self._leader_by, name))

    def kill(self, *names: str) -> None:
        """SIGKILL to these, or to all that run; gone on return."""
        for name in names or tuple(self._processes):
            process = self._processes.pop(name)
            process.kill()
            process.wait()

    def hang(self, name: str) -> None:
        """It is there and says nothing, until it is killed."""
        self._processes[name].send_signal(signal.SIGSTOP)

    def join(self, name: str) -> None:
        """Another member, started beside those that run, and again for as long as they do not
        take it: etcd wants all its members to have been there for some seconds."""
        others = ",".join(map(self.url, self._processes))
        self._ports[name] = free_port(), free_port()
        self._how[name] = f"--join={others}"
        self._launch(name)
        until_s = time.monotonic() + PATIENCE_S
        while not self._leader_by(name):
            assert time.monotonic() < until_s, self.log()
            if self._processes[name].poll() is not None:
                self._launch(name)
            time.sleep(0.1)

    def remove(self, name: str) -> None:
        """A member leaves the cluster for good, and its process ends."""
        self._ask(f"members/name/{name}", "DELETE")
        self.kill(name)
        del self._ports[name], self._how[name]

    def lead(self, name: str) -> None:
        """The leader hands over to this member; returns when it leads."""
        while self.leader() != name:
            self._ask(f"leader/transfer/{name}", "POST")

    def leader(self) -> str:
        """Who leads, as soon as somebody who runs does."""
        return self._wait(lambda: next(filter(None, map(self._leader_by, self._processes)), ""))

    def _leader_by(self, name: str) -> str:
        try:
            told = json.loads(self._call(name, "members", "GET")).get("leader", {})
        except (OSError, ValueError):
            return ""
        leader: str = told.get("name", "")
        return leader if leader in self._processes else ""

    def _wait(self, look: Callable[[], str]) -> str:
        until_s = time.monotonic() + PATIENCE_S
        while not (found := look()):
            ended = [name for name, each in self._processes.items() if each.poll() is not None]
            if ended or time.monotonic() > until_s:
                raise AssertionError(f"no leader, and {ended} ended: {self.log()}")
            time.sleep(0.05)
        return found

    def log(self) -> str:
        """The end of what each has printed."""
        files = sorted(self._directory.glob("pd*.log"))
        return "".join(f"\n--- {each.name}\n{each.read_text()[-2000:]}" for each in files)

    def _launch(self, name: str) -> None:
        self._processes[name] = subprocess.Popen(
            [
                str(self._program),
                f"--name={name}",
                f"--data-dir={self._directory / name}",
                f"--log-file={self._directory / name}.log",
                f"--client-urls={self.url(name)}",
                f"--peer-urls={self._url(name, 1)}",
                self._how[name],
                *self._certificates(),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    # --- its HTTP API -------------------------------------------------------------------------

    def _ask(self, path: str, method: str) -> None:
        """Again and again while the leader moves."""
        until_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                self._call(self.leader(), path, method)
            except OSError as error:
                if time.monotonic() > until_s:
                    said = error.read() if isinstance(error, HTTPError) else error
                    raise AssertionError(f"{path}: {said!r}: {self.log()}") from error
                time.sleep(0.05)
            else:
                return

    def _call(self, name: str, path: str, method: str) -> bytes:
        context = None
        if self._authority is not None:
            context = ssl.create_default_context(cafile=self._authority.file)
            context.load_cert_chain(*self._pair())
        asked = urllib.request.Request(f"{self.url(name)}/pd/api/v1/{path}", method=method)
        with urllib.request.urlopen(asked, timeout=10, context=context) as answer:
            said: bytes = answer.read()
            return said

    def _url(self, name: str, which: int) -> str:
        scheme = "https" if self._authority is not None else "http"
        return f"{scheme}://127.0.0.1:{self._ports[name][which]}"

    def _certificates(self) -> list[str]:
        if self._authority is None:
            return []
        certificate, key = self._pair()
        return [f"--cacert={self._authority.file}", f"--cert={certificate}", f"--key={key}"]

    def _pair(self) -> tuple[Path, Path]:
        assert self._authority is not None
        directory = self._authority.directory
        return directory / "pd.pem", directory / "pd.key"


@contextmanager
def real_pd(
    program: Path, directory: Path, count: int = 1, authority: Authority | None = None
) -> Iterator[RealPd]:
    """A PD of `count` members that has no TiKV yet; with TLS by the pair `pd` of an authority."""
    if authority is not None:
        authority.issue("pd")
    made = RealPd(program, directory, count, authority)
    try:
        made.start()
        yield made
    finally:
        made.kill()
