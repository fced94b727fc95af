"""The targets, and the inputs that are kept of each: a corpus, and what has failed once.

targets/NAME.py        seeds(): where a search begins; run(data): raises what is a fault
corpus/NAME.txt        inputs that reach what others do not, one to a line, in base64
crashes/NAME.txt       inputs that have failed once: `reason: base64`; the gate runs them
"""

from __future__ import annotations

import importlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
CORPORA, CRASHES = HERE / "corpus", HERE / "crashes"


class Target(NamedTuple):
    """What is searched."""

    name: str
    run: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]


def names() -> list[str]:
    """Of all targets."""
    return sorted(path.stem for path in (HERE / "targets").glob("*.py"))


def target(name: str) -> Target:
    """One of them. Raises ModuleNotFoundError."""
    module = importlib.import_module(f"tests.fuzz.targets.{name}")
    return Target(name, module.run, module.seeds)


def corpus(name: str) -> list[bytes]:
    """What was kept of earlier searches."""
    path = CORPORA / f"{name}.txt"
    return [b64decode(line) for line in path.read_text().splitlines()] if path.exists() else []


def keep(name: str, inputs: Iterable[bytes]) -> None:
    """In place of what was kept."""
    CORPORA.mkdir(exist_ok=True)
    lines = sorted(
        (b64encode(each).decode() for each in inputs), key=lambda line: (len(line), line)
    )
    (CORPORA / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))


def crashes(name: str) -> Iterator[tuple[str, bytes]]:
    """What has failed once, and why."""
    path = CRASHES / f"{name}.txt"
    for line in path.read_text().splitlines() if path.exists() else ():
        reason, _, text = line.rpartition(": ")
        yield reason, b64decode(text)
