"""What is published, built and tried; `make wheel` is this as a program.

Nothing is downloaded: setuptools, mypy and the libraries are those of this environment.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from tests.support.ports import free_port
from tests.support.tried import tried

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
"""What pyproject.toml says."""
LIBRARIES = [each for each in sys.path if Path(each).name == "site-packages"]
"""Where those of this environment are."""


def run(*words: str | Path, cwd: Path, environ: dict[str, str] | None = None) -> str:
    """What a command prints on both channels; it has to succeed."""
    done = subprocess.run(
        words,
        cwd=cwd,
        env={**os.environ, **(environ or {})},
        text=True,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0, f"{words}: {done.stdout}"
    return done.stdout


def sdist(directory: Path) -> Path:
    """Of these sources, as the build backend makes it; the tree stays as it is."""
    tree = directory / "tree"
    unread = shutil.ignore_patterns(".*", "recordings", "build", "dist", "site", "__pycache__")
    shutil.copytree(ROOT, tree, ignore=unread)
    return directory / _backend("build_sdist", directory, cwd=tree)


def wheel(source: Path, directory: Path, environ: dict[str, str] | None = None) -> Path:
    """Of an sdist; compiled where `environ` has BINLOGD_COMPILE=1."""
    with tarfile.open(source) as archive:
        archive.extractall(directory, filter="data")
    unpacked = directory / source.name.removesuffix(".tar.gz")
    return directory / _backend("build_wheel", directory, cwd=unpacked, environ=environ)


def _backend(hook: str, directory: Path, cwd: Path, environ: dict[str, str] | None = None) -> str:
    """The name of what a hook of the build backend (PEP 517) has made in `directory`."""
    call = f"import sys; from setuptools import build_meta as b; print(b.{hook}(sys.argv[1]))"
    return run(sys.executable, "-c", call, directory, cwd=cwd, environ=environ).split()[-1]


def installed(package: Path, directory: Path) -> Path:
    """The programs of an environment with this wheel; its libraries are those of this one."""
    made = directory / "installed"
    run(sys.executable, "-m", "venv", "--without-pip", made, cwd=directory)
    (place,) = made.glob("lib/python3*/site-packages")
    (place / "libraries.pth").write_text("\n".join(LIBRARIES))
    pip = (sys.executable, "-m", "pip", "--python", made / "bin" / "python", "install", "--quiet")
    run(
        *pip, "--no-index", "--no-deps", "--no-compile", "--force-reinstall", package, cwd=directory
    )
    return made / "bin"


def check_program(programs: Path, directory: Path) -> None:
    """It says its version, reads a configuration, serves, and ends in good order."""
    version = PROJECT["project"]["version"]
    port = free_port()
    (directory / "binlogd.toml").write_text(
        f'addr = "127.0.0.1:{port}"\ndata-dir = "log"\n[drainer]\nenabled = false\n'
    )
    binlogd, quiet = programs / "binlogd", {"PYTHONPATH": "", "PYTHONSAFEPATH": "1"}
    tried("Python", run(programs / "python", "-V", cwd=directory).split()[1])
    assert version in run(binlogd, "--version", cwd=directory, environ=quiet)
    run(binlogd, "check-config", "--config", "binlogd.toml", cwd=directory, environ=quiet)
    with subprocess.Popen(
        [binlogd, "serve", "--config", "binlogd.toml"],
        cwd=directory,
        env={**os.environ, **quiet},
        stderr=subprocess.DEVNULL,
    ) as serving:
        try:
            wait = ("health", "--wait", "30", "--config", "binlogd.toml")
            run(binlogd, *wait, cwd=directory, environ=quiet)
        finally:
            serving.terminate()
        assert serving.wait(timeout=30) == 0


def main() -> None:
    """Leaves an sdist and a compiled wheel in dist/, when the wheel has been tried."""
    dist = ROOT / "dist"
    dist.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        place = Path(made)
        source = sdist(place)
        package = wheel(source, place, environ={"BINLOGD_COMPILE": "1"})
        programs = installed(package, place)
        form = "from binlogd import native; print(native.form())"
        assert run(programs / "python", "-I", "-c", form, cwd=place) == "compiled\n"
        check_program(programs, place)
        for each in (source, package):
            sys.stdout.write(f"{shutil.copy(each, dist)}\n")


if __name__ == "__main__":
    main()
