"""A private MariaDB: its own directory, socket and port; started in about a second, killed at will.

`mariadb-install-db` takes several seconds, so its outcome is kept as a template (one per version
and user, in the cache directory) and copied for each server.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pymysql

from tests.support.ports import free_port
from tests.support.recordings_reader import SYSTEM_SCHEMAS, connect
from tests.support.started import wait_for
from tests.support.tried import tried

STOP_TIMEOUT_S = 120.0
SEARCHED = ("/usr/sbin", "/usr/local/sbin", "/usr/libexec", "/usr/local/mysql/bin")


class MariaDbMissing(Exception):
    """No MariaDB on this machine; the text says how to get one."""


def program(*names: str) -> str:
    """The path of the first of these programs that exists. Raises MariaDbMissing."""
    path = os.pathsep.join([os.environ.get("PATH", ""), *SEARCHED])
    for name in names:
        if found := shutil.which(name, path=path):
            return found
    raise MariaDbMissing(
        f"{names[0]} is not installed: these tests run a private MariaDB."
        " Install it with `apt-get install mariadb-server` (10.6 or later)"
    )


class MariaDb:
    """A server that belongs to one test run. `start` before use, `stop` at the end.

    With is_durable each commit is fsynced, as by default; otherwise only a crash of the machine,
    which no test makes, could lose one.
    """

    name = "MariaDB"
    host = "127.0.0.1"
    user = "root"
    password = ""

    def __init__(
        self,
        directory: Path,
        *,
        is_durable: bool = False,
        pool_mb: int = 128,
        options: Sequence[str] = (),
    ) -> None:
        self.directory, self.is_durable = directory, is_durable
        self.port = free_port()
        # a path of a socket may have about 100 characters: not below a directory of pytest
        self._short = Path(tempfile.mkdtemp(prefix="mdb"))
        self.socket = self._short / "s"
        self._settings = (
            f"--innodb-buffer-pool-size={pool_mb}M",
            f"--innodb-flush-log-at-trx-commit={1 if is_durable else 2}",
            *options,
        )
        self._process: subprocess.Popen[bytes] | None = None
        self._version = ""  # as it says when it has started

    def start(self) -> None:
        """Returns when it answers; on data left by a crash it recovers first."""
        data = self.directory / "data"
        if not data.exists():
            _copy(self.template(), data)
        command = [*self.command(data), *self._settings]
        command += [f"--socket={self.socket}", f"--port={self.port}"]
        command += ["--bind-address=127.0.0.1", f"--pid-file={self._short / 'pid'}"]
        # a server that starts removes the temporary tables it finds there, those of others too
        command += [f"--tmpdir={self._short}"]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        wait_for(self._process, self._answers, self.directory / "log")
        ((version,),) = self.execute("SELECT VERSION()")
        assert version is not None
        self._version = version.decode()
        tried(self.name, self._version)

    def command(self, data: Path) -> list[str]:
        """What starts it on a data directory."""
        syncs = () if self.is_durable else _NO_SYNCS
        server = program("mariadbd", "mysqld")
        return [server, *COMMON, *_OWN, *syncs, *as_user(), f"--datadir={data}"]

    def template(self) -> Path:
        """A fresh data directory, to be copied."""
        return _template()

    def stop(self) -> None:
        """Ends it in order and removes its data."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill()
        self._process = None
        shutil.rmtree(self._short, ignore_errors=True)
        shutil.rmtree(self.directory / "data", ignore_errors=True)

    def kill(self) -> None:
        """SIGKILL, in the middle of whatever it does."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(STOP_TIMEOUT_S)
            self._process = None

    def restart(self) -> None:
        """As after a crash: SIGKILL, then start on the same data and port."""
        self.kill()
        self.start()

    def copy_to(self, other: MariaDb) -> None:
        """Gives another server, that was not started, a cold copy of the data. This one ends as in
        a crash, and starts again."""
        self.kill()
        other.directory.mkdir(parents=True, exist_ok=True)
        copy = ["cp", "-r", "--sparse=always", str(self.directory / "data"), str(other.directory)]
        subprocess.run(copy, check=True)
        self.start()

    @property
    def pid(self) -> int:
        """Of the server process, for measuring its CPU time."""
        assert self._process is not None
        return self._process.pid

    def connect(self) -> Any:
        """A PyMySQL connection: autocommit, bytes as they are, times in UTC, sql_mode ''."""
        return connect(self.host, self.port, self.user, self.password)

    def execute(self, *statements: str) -> list[tuple[bytes | None, ...]]:
        """Runs statements on a connection of their own; returns the rows of the last."""
        connection = self.connect()
        try:
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
                return list(cursor.fetchall())
        finally:
            connection.close()

    def reset(self) -> None:
        """Drops every schema that a test made, the checkpoint's too."""
        tried(self.name, self._version)
        kept = {name.encode() for name in SYSTEM_SCHEMAS} - {b"tidb_binlog"}
        schemas = [name for (name,) in self.execute("SHOW DATABASES") if name not in kept]
        drops = [f"DROP DATABASE `{(name or b'').decode()}`" for name in schemas]
        if drops:
            self.execute("SET foreign_key_checks = 0", *drops)

    def _answers(self) -> bool:
        try:
            self.connect().close()
        except pymysql.err.OperationalError:
            return False
        return True


_OWN = ("--innodb-log-file-size=128M", "--lower-case-table-names=0")
_NO_SYNCS = ("--debug-no-sync", "--innodb-flush-method=nosync")
"""What is written is there after SIGKILL; a DDL alone would wait for the disk a dozen times."""
COMMON = (
    "--no-defaults",
    "--skip-name-resolve",
    "--skip-log-bin",
    "--character-set-server=utf8mb4",
    "--collation-server=utf8mb4_bin",
    "--max-allowed-packet=256M",
    "--performance-schema=OFF",
    "--sql-mode=ALLOW_INVALID_DATES",
    "--max-connections=200",
)
"""Of a MySQL as well."""


def as_user() -> Sequence[str]:
    """Neither of both runs as root unless told to."""
    return ["--user=root"] if os.geteuid() == 0 else []


def _copy(template: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-r", "--sparse=always", str(template), str(target)], check=True)


def _template() -> Path:
    server = program("mariadbd", "mysqld")
    version = subprocess.run([server, "--version"], check=True, capture_output=True, text=True)
    name = "".join(c for c in version.stdout.split("Ver", 1)[-1] if c.isalnum() or c in ".-")[:40]
    home = os.environ.get("XDG_CACHE_HOME") or Path(pwd.getpwuid(os.geteuid()).pw_dir) / ".cache"
    template = Path(home) / "binlogd-tests" / f"mariadb-{name}"
    if not template.exists():
        _install(template)
    return template


def _install(template: Path) -> None:
    """Made beside its place and moved there at once: two test runs may do so at one time."""
    template.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix="fresh", dir=template.parent))
    install = program("mariadb-install-db", "mysql_install_db")
    command = [install, "--no-defaults", f"--datadir={fresh}", "--skip-test-db", *as_user()]
    command += ["--auth-root-authentication-method=normal", "--innodb-log-file-size=128M"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        shutil.rmtree(fresh, ignore_errors=True)
        raise AssertionError(f"{install} failed: {done.stdout[-1000:]} {done.stderr[-1000:]}")
    become(fresh, template)


def become(fresh: Path, template: Path) -> None:
    """Moves what is made to its place, unless another run was first."""
    try:
        fresh.rename(template)
    except OSError:
        shutil.rmtree(fresh, ignore_errors=True)
