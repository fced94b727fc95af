"""Which form of the hot modules runs: their sources, or what mypyc made of them.

Invariant. What runs compiled was compiled from the sources beside it. Why it holds: the build
writes down their digests last of all, and whoever imports the package compares them, where sources
can change at all: an installed package is as it was built. Without this, an edited source would be
passed over without a word.

See docs/decisions/0052-compiled.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

RECORD = "native.json"
"""Beside the library: which sources it was made of; none of an installed package."""

_LIBRARY = f"native__mypyc{EXTENSION_SUFFIXES[0]}"
_WAY_OUT = "run `make compile`, or `make uncompile` and the sources run as they are"


def is_compiled(package: Path = Path(__file__).parent) -> bool:
    """Whether this interpreter loads the compiled form."""
    return (package / _LIBRARY).exists()


def form() -> str:
    """The same as a word: `compiled` or `plain`."""
    return "compiled" if is_compiled() else "plain"


def refuse_stale(package: Path = Path(__file__).parent) -> None:
    """Raises ImportError where something was compiled from other sources than are there now."""
    if not is_compiled(package):
        return
    changed = _changed(package)
    if changed is not None:
        raise ImportError(f"{changed}: {_WAY_OUT}")


def is_current(root: Path, record: Mapping[str, Any]) -> bool:
    """Whether what `record_of` says holds for the compiled form that is there."""
    package = root / "binlogd"
    return is_compiled(package) and _recorded(package) == record


def record_of(root: Path, compiled: Sequence[str], sources: Sequence[str]) -> dict[str, Any]:
    """What is written down of a build: its modules and its sources below `root`. Raises OSError."""
    return {"compiled": list(compiled), "sources": {each: _digest(root / each) for each in sources}}


def remove(package: Path) -> None:
    """The compiled form; the sources run from then on. The record goes first."""
    (package / RECORD).unlink(missing_ok=True)
    for suffix in EXTENSION_SUFFIXES:
        for path in package.rglob(f"*{suffix}"):
            path.unlink()


def _digest(path: Path) -> str:
    import hashlib  # nothing is compared where nothing was compiled in its place

    return hashlib.sha256(path.read_bytes()).hexdigest()


def _recorded(package: Path) -> Mapping[str, Any] | None:
    """None where the build did not come to its end."""
    try:
        record: Mapping[str, Any] = json.loads((package / RECORD).read_bytes())
    except FileNotFoundError:
        return None
    return record


def _changed(package: Path) -> str | None:
    recorded = _recorded(package)
    if recorded is None:
        return f"compiling the modules of {package} did not come to its end"
    for source, digest in recorded["sources"].items():
        path = package.parent / source
        if not path.exists() or _digest(path) != digest:
            return f"{path} is not what was compiled"
    return None
