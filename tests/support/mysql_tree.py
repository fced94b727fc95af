"""Gets a MySQL that runs beside a MariaDB: unpacked from Debian's packages, nothing is installed.

Debian has MySQL in its unstable suite alone, built for a newer C library than a stable machine has.
So the server is unpacked with all that it needs into the cache directory, the loader too, and run
by that loader: no root, no chroot, no change of the machine. Run as a program it does that once
(`make setup-test` does), with apt's own downloads and signatures.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGE = "mysql-server-core"
SUITE = "sid"
MIRROR = "http://deb.debian.org/debian"
KEYRINGS = ("debian-archive-keyring.gpg", "debian-archive-keyring.pgp")


class MySqlMissing(Exception):
    """No MySQL is unpacked here, or nothing can be; the text says how to get one."""


def cache() -> Path:
    """Where test runs keep what takes long to make."""
    home = os.environ.get("XDG_CACHE_HOME") or Path(pwd.getpwuid(os.geteuid()).pw_dir) / ".cache"
    return Path(home) / "binlogd-tests"


def tree() -> Path:
    """The directory with MySQL's files. Raises MySqlMissing."""
    found = cache() / "mysql"
    if not found.exists():
        raise MySqlMissing(
            "no MySQL is here: these tests run a private one beside MariaDB."
            " `make setup-test` unpacks it from Debian's unstable suite"
        )
    return found


def mysqld() -> list[str]:
    """The command that runs the server, by its own loader. Raises MySqlMissing."""
    usr = tree() / "usr"
    loader = next((usr / "lib").glob("*-linux-gnu/ld-linux-*.so.*"))
    return [str(loader), "--library-path", str(loader.parent), str(usr / "sbin" / "mysqld")]


def install() -> None:
    """Unpacks it, unless it is there. Raises MySqlMissing.

    Made beside its place and moved there at once: two may do so at one time.
    """
    unpack(cache() / "mysql", PACKAGE)


def unpack(place: Path, *packages: str) -> None:
    """Packages of that suite and all that they need, unless they are there. Raises MySqlMissing."""
    if place.exists():
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fresh", dir=place.parent) as work:
        fresh = Path(work) / "tree"
        for package in _downloaded(Path(work) / "apt", packages):
            _run(["dpkg-deb", "--extract", str(package), str(fresh)])
        for unread in ("share/doc", "share/perl", "share/man", "share/locale"):
            shutil.rmtree(fresh / "usr" / unread, ignore_errors=True)
        try:
            fresh.rename(place)
        except OSError:  # another run was first
            if not place.exists():
                raise


def _downloaded(apt: Path, packages: tuple[str, ...]) -> list[Path]:
    """The packages, by an apt that knows this suite alone and of nothing that is installed."""
    for folder in ("state/lists/partial", "cache/archives/partial", "etc/preferences.d"):
        (apt / folder).mkdir(parents=True)
    (apt / "state" / "status").touch()
    rings = [Path("/usr/share/keyrings") / name for name in KEYRINGS]
    signed = next((f"[signed-by={each}] " for each in rings if each.exists()), "")
    (apt / "etc" / "sources.list").write_text(f"deb {signed}{_mirror()} {SUITE} main\n")
    settings = {
        "Dir::State": apt / "state",
        "Dir::State::status": apt / "state" / "status",
        "Dir::Cache": apt / "cache",
        "Dir::Etc": apt / "etc",
        "Dir::Etc::sourcelist": apt / "etc" / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "APT::Sandbox::User": "",
        "APT::Install-Recommends": "false",
        "Acquire::Languages": "none",
        "Acquire::Retries": "3",
        "APT::Update::Error-Mode": "any",
    }
    command = ["apt-get", "-qq"]
    for name, value in settings.items():
        command += ["-o", f"{name}={value}"]
    _run([*command, "update"])
    _run([*command, "--yes", "--download-only", "install", *packages])
    return sorted((apt / "cache" / "archives").glob("*.deb"))


def _mirror() -> str:
    """Where this machine has its packages from, if that is Debian."""
    asked = ["apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    sites = (line.rstrip("/") for line in done.stdout.split())
    return next((site for site in sites if site.endswith("/debian")), MIRROR)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).split())[-600:]
        raise MySqlMissing(
            f"what the tests need cannot be got from Debian's suite {SUITE} at {_mirror()}:"
            f" {command[0]} {command[-1]} says: {said}"
        )


if __name__ == "__main__":
    try:
        install()
    except (MySqlMissing, OSError) as error:
        sys.exit(str(error))
