"""Builds the image and runs it for real, on a Debian machine without a Docker engine.

debootstrap makes a base, buildah builds the Dockerfile's default target on it, podman and runc
start the container as `docker run` would, without arguments, with a read-only root. Then: healthy,
acknowledged over gRPC, stopped by SIGTERM with a consistent checkpoint, killed, and everything
still in the volume. TARGETS names what is built, `run` by default; `check` is lint and quick tests,
`spark` has a Java runtime. Run as root by `make image-test`; not collected by pytest. See
docs/IMAGE.md.
"""

from __future__ import annotations

import ast
import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from binlogd.client.pump_client import PumpClient, RemoteSource
from binlogd.tso import NO_TS, Tso, compose
from binlogd.wire import peek
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog
from binlogd.wire.mutation import encode_mutations

ROOT = Path(__file__).parents[2]
PACKAGES = ("debootstrap", "buildah", "podman", "runc")
SUITE = "bookworm"
INSIDE = "python3,python3-venv,tini,ca-certificates"
BASE, IMAGE = "localhost/binlogd-base", "localhost/binlogd"
PORT, CLUSTER, UID = 8250, 7, 8250
START_S, STOP_S, BUILD_S = 60.0, 10, 1800.0
TRANSACTIONS = 200
TARGETS = os.environ.get("TARGETS", "run").split()
LABELS = {"title": "binlogd", "version": "0.1.0", "base.name": ""}
"""Of the image; empty: any text."""
PIP_KEYS = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout")
"""What of this machine's pip settings says how an index is reached; the build gets these alone."""


def say(what: str) -> None:
    sys.stdout.write(what + "\n")
    sys.stdout.flush()


def expect(what: str, *, is_so: bool) -> None:
    """One line of the proof; ends everything when it is not so."""
    if not is_so:
        raise SystemExit(f"NOT SO: {what}")
    say(f"  ok  {what}")


def command(*words: str, timeout_s: float = 120.0) -> str:
    """What it prints; ends everything with its last words when it fails."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(words)}\n{(done.stdout + done.stderr)[-4000:]}")
    return done.stdout.strip()


# --- the image --------------------------------------------------------------------------


class Store:
    """Images and containers of this run alone; gone with `close`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._places = (
            *("--root", str(directory / "images"), "--runroot", str(directory / "run")),
            *("--storage-driver", "overlay"),
        )

    def buildah(self, *words: str) -> str:
        return command("buildah", *self._places, *words, timeout_s=BUILD_S)

    def podman(self, *words: str) -> str:
        runs = ("--runtime", "runc", "--cgroup-manager", "cgroupfs", "--events-backend", "file")
        state = ("--tmpdir", str(self.directory / "tmp"))
        # without systemd nobody would run the health check by the clock
        quiet = ("env", "DISABLE_HC_SYSTEMD=true")
        return command(*quiet, "podman", *self._places, *runs, *state, *words)

    def close(self) -> None:
        """Containers first: they hold mounts below the directory."""
        self.podman("rm", "--all", "--force", "--volumes")
        self.podman("rmi", "--all", "--force")
        subprocess.run(["umount", "--quiet", str(self.directory / "images/overlay")], check=False)
        shutil.rmtree(self.directory)


def install() -> None:
    missing = [
        name
        for name in PACKAGES
        if shutil.which(name, path=f"{os.defpath}:/usr/sbin:/sbin") is None
    ]
    if missing:
        say(f"installing {' '.join(missing)}")
        command("apt-get", "update", "-qq")
        quiet = ("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-y", "-qq")
        command(*quiet, "--no-install-recommends", *missing, timeout_s=BUILD_S)


def make_base(store: Store) -> str:
    """A Debian with Python as a base image. BASE names one that is there already."""
    if "BASE" in os.environ:
        return os.environ["BASE"]
    tree = store.directory / "debian"
    mirror = [os.environ["MIRROR"]] if "MIRROR" in os.environ else []
    command(
        *("debootstrap", "--variant=minbase", f"--include={INSIDE}", SUITE, str(tree), *mirror),
        timeout_s=BUILD_S,
    )
    command("chroot", str(tree), "apt-get", "clean")
    shutil.rmtree(tree / "var/lib/apt/lists")
    archive = store.directory / "debian.tar"
    command("tar", "--create", "--file", str(archive), "--directory", str(tree), ".")
    shutil.rmtree(tree)
    store.podman("import", str(archive), BASE)
    archive.unlink()
    return BASE


def pip_settings(directory: Path) -> list[str]:
    """How this machine's pip reaches its index, for the build alone: a mount, in no layer.

    The mount hides a directory that every Debian has; a new one would leave an empty trace.
    """
    listed = command(sys.executable, "-m", "pip", "config", "list").splitlines()
    settings: dict[str, str] = {}
    for line in sorted(listed, key=lambda line: line.startswith(":env:")):  # the environment wins
        name, _, value = line.partition("=")
        settings[name.rpartition(".")[2]] = " ".join(ast.literal_eval(value).split())
    lines = ["[global]", *(f"{key} = {settings[key]}" for key in PIP_KEYS if key in settings)]
    directory.mkdir(mode=0o700)  # an index's URL may hold a password
    if ca := settings.get("cert") or os.environ.get("REQUESTS_CA_BUNDLE"):
        shutil.copy(ca, directory / "ca.crt")
        lines.append("cert = /mnt/ca.crt")
    (directory / "pip.conf").write_text("\n".join(lines) + "\n")
    return ["--volume", f"{directory}:/mnt:ro", "--build-arg", "PIP_CONFIG_FILE=/mnt/pip.conf"]


def build(store: Store) -> None:
    begin_s = time.monotonic()
    base = make_base(store)
    say(f"base image: {time.monotonic() - begin_s:.0f} s")
    pip = pip_settings(store.directory / "pip")
    words = ("bud", "--isolation", "chroot", "--format", "docker", "--layers")
    for target in TARGETS:
        begin_s = time.monotonic()
        tag = IMAGE if target == "run" else f"{IMAGE}:{target}"
        at = ("--target", target, "--tag", tag, "--build-arg", f"BASE={base}")
        store.buildah(*words, *at, *pip, str(ROOT))
        sizes = f"{megabytes(store, tag)} MB, of which {megabytes(store, base)} MB are the base"
        say(f"{target}: {time.monotonic() - begin_s:.0f} s, {sizes}")


def megabytes(store: Store, image: str) -> int:
    return int(store.podman("image", "inspect", "--format", "{{.Size}}", image)) // 1_000_000


# --- the container ----------------------------------------------------------------------


class Container:
    """`docker run -v data:/var/lib/binlogd binlogd`, on the ports of this machine."""

    def __init__(self, store: Store) -> None:
        self._store = store
        store.podman("volume", "create", "data")

    def start(self) -> tuple[float, dict[str, Any]]:
        """Seconds until `/status` answered, and what it said."""
        limits = ("--ulimit", "nofile=8192:8192", "--ulimit", "nproc=4096:4096")
        places = ("--network", "host", "--volume", "data:/var/lib/binlogd")
        closed = ("--read-only", "--read-only-tmpfs=false", "--cap-drop", "ALL")
        begin_s = time.monotonic()
        self._store.podman("run", "--detach", "--name", "binlogd", *limits, *places, *closed, IMAGE)
        while time.monotonic() < begin_s + START_S:
            try:
                url = f"http://127.0.0.1:{PORT}/status"
                with urllib.request.urlopen(url, timeout=5) as answer:
                    return time.monotonic() - begin_s, json.load(answer)
            except OSError:
                time.sleep(0.02)
        raise SystemExit(f"no answer within {START_S} s\n{self._store.podman('logs', 'binlogd')}")

    def stop(self) -> tuple[float, int]:
        """The image's stop signal; seconds and exit code. 137: it had to be killed."""
        begin_s = time.monotonic()
        self._store.podman("stop", "--time", str(STOP_S), "binlogd")
        return time.monotonic() - begin_s, self._gone()

    def kill(self) -> None:
        self._store.podman("kill", "--signal", "KILL", "binlogd")
        self._store.podman("wait", "binlogd")
        self._gone()

    def savepoint(self) -> Mapping[str, Any]:
        return tomllib.loads((self._volume() / "drainer/savepoint").read_text())

    def owners(self) -> set[int]:
        """Of everything in the volume."""
        return {path.stat().st_uid for path in [self._volume(), *self._volume().rglob("*")]}

    def uid(self) -> int:
        """Of the process itself, seen from outside."""
        return Path(f"/proc/{self._pid()}").stat().st_uid

    def first_process(self) -> str:
        """Its name."""
        return Path(f"/proc/{self._pid()}/comm").read_text().strip()

    def is_healthy(self) -> bool:
        """What the image's own health check says."""
        self._store.podman("healthcheck", "run", "binlogd")
        return True

    def _pid(self) -> str:
        return self._store.podman("inspect", "--format", "{{.State.Pid}}", "binlogd")

    def shell(self, script: str) -> str:
        return self._store.podman("exec", "binlogd", "sh", "-c", script)

    def _gone(self) -> int:
        code = self._store.podman("inspect", "--format", "{{.State.ExitCode}}", "binlogd")
        self._store.podman("rm", "binlogd")
        return int(code)

    def _volume(self) -> Path:
        return Path(self._store.podman("volume", "inspect", "--format", "{{.Mountpoint}}", "data"))


# --- the proof --------------------------------------------------------------------------

Log = dict[tuple[Tso, Tso], bytes]


async def write(first: Tso) -> Log:
    """Transactions from `first` on, each acknowledged: (start_ts, commit_ts) to PrewriteValue."""
    acknowledged: Log = {}
    async with PumpClient("127.0.0.1", PORT, cluster_id=CLUSTER) as client:
        for number in range(TRANSACTIONS):
            start_ts, commit_ts = Tso(first + 2 * number), Tso(first + 2 * number + 1)
            value = encode_mutations(number + 1, [])
            await client.write(prewrite_binlog(start_ts, prewrite_key=b"k", prewrite_value=value))
            await client.write(commit_binlog(start_ts, commit_ts))
            acknowledged[start_ts, commit_ts] = value
    return acknowledged


async def read(count: int) -> Log:
    """The same from the log, over gRPC."""
    found: Log = {}
    source = RemoteSource("image", "127.0.0.1", PORT, cluster_id=CLUSTER)
    async with asyncio.timeout(START_S):
        async for batch in source.pull(NO_TS):
            for binlog in batch.binlogs:
                if not binlog.is_fake:
                    value = peek.body(binlog.payload).prewrite_value
                    found[binlog.start_ts, binlog.commit_ts] = value
            if len(found) >= count:
                break
    return found


def expect_clean_stop(container: Container, log: Log) -> None:
    took_s, code = container.stop()
    expect(f"SIGTERM ended it in {took_s:.1f} s, exit code {code}", is_so=code == 0)
    savepoint = container.savepoint()
    reached = savepoint["commitTS"] >= max(commit_ts for _, commit_ts in log)
    expect(f"checkpoint {savepoint}", is_so=savepoint["consistent"] is True and reached)


def prove_labels(store: Store) -> None:
    """What the image says of itself."""
    said = json.loads(store.podman("image", "inspect", "--format", "{{json .Labels}}", IMAGE))
    prefix = "org.opencontainers.image."
    found = {key.removeprefix(prefix): value for key, value in said.items()}
    right = all(found.get(key) and found[key].startswith(value) for key, value in LABELS.items())
    expect(f"labelled {found}", is_so=right)


def prove_spark(store: Store) -> None:
    """The other image has Java and PySpark, and is binlogd too."""
    limits = ("--ulimit", "nofile=8192:8192", "--ulimit", "nproc=4096:4096", "--network", "host")
    run = ("run", "--rm", *limits, "--entrypoint", "sh", f"{IMAGE}:spark", "-c")
    said = store.podman(
        *run, "java -version 2>&1 && python3 -c 'import pyspark' && binlogd --version"
    )
    expect(f"spark: {said.splitlines()[0]}, {said.splitlines()[-1]}", is_so="binlogd" in said)
    said = store.podman("run", "--rm", *limits, f"{IMAGE}:spark", "--version")
    expect(f"by itself it is binlogd: {said}", is_so="binlogd" in said)
    said = store.podman(*run, "/opt/spark/entrypoint.sh driver --version 2>&1")
    version = next((line for line in said.splitlines() if "version" in line), said)
    expect(f"as a driver it is spark-submit: {version.split()[-1]}", is_so="version 4." in said)
    said = store.podman(*run, "ls /opt/job")
    expect(f"to submit: {' '.join(said.split())}", is_so="pipeline.py" in said)
    said = store.podman(*run, "binlogd spark warmup --json")
    expect(f"class archive: {said.strip()}", is_so='"is_new":false' in said)


def prove(container: Container) -> None:
    took_s, status = container.start()
    is_online = status["state"] == "online"
    expect(f"without arguments /status answers after {took_s:.2f} s", is_so=is_online)
    expect(f"what runs is {status['form']}", is_so=status["form"] == "compiled")
    uid = container.uid()
    expect(f"the process runs as user {uid}", is_so=uid == UID)
    expect("the first process is tini", is_so=container.first_process() == "tini")
    expect("the image's health check passes", is_so=container.is_healthy())
    writable = container.shell("touch /tmp/x /etc/x /x 2>/dev/null && echo writable || true")
    expect("the root file system is read-only", is_so=not writable)
    tools = container.shell("for t in cc gcc g++ make ld; do command -v $t || true; done")
    expect(f"no compiler inside{tools and ': ' + tools}", is_so=not tools)
    traces = container.shell("ls -A /mnt; env | grep PIP_ || true")
    expect(f"nothing left of the build's pip settings{traces and ': ' + traces}", is_so=not traces)
    container.shell("binlogd status")
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/", timeout=5) as page:
        expect("the page is served", is_so=b"</html>" in page.read())

    log = asyncio.run(write(compose(int(time.time() * 1000))))
    expect(f"{len(log)} transactions acknowledged over gRPC", is_so=len(log) == TRANSACTIONS)
    expect_clean_stop(container, log)
    owners = container.owners()
    expect(f"everything in the volume belongs to user {UID}", is_so=owners == {UID})

    took_s, status = container.start()
    is_same = status["cluster_id"] == CLUSTER
    expect(f"started again on the volume, /status after {took_s:.2f} s", is_so=is_same)
    expect("what was acknowledged is read back", is_so=asyncio.run(read(len(log))) == log)
    log |= asyncio.run(write(compose(int(time.time() * 1000))))
    container.kill()
    container.start()
    found = asyncio.run(read(len(log)))
    expect(f"and after kill -9: {len(found)} of {len(log)} transactions", is_so=found == log)
    expect_clean_stop(container, log)


def main() -> None:
    if os.geteuid() != 0:
        raise SystemExit("containers without a daemon need root here: sudo make image-test")
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", PORT)) == 0:
            raise SystemExit(f"port {PORT}, the image's own, is taken on this machine")
    install()
    store = Store(Path(tempfile.mkdtemp(prefix="binlogd-image-", dir="/var/tmp")))
    try:
        build(store)
        if "run" in TARGETS:
            prove_labels(store)
            prove(Container(store))
        if "spark" in TARGETS:
            prove_spark(store)
    finally:
        store.close()
    say("the image builds, runs and keeps what it acknowledged")


if __name__ == "__main__":
    main()
