"""Files that a Go Pump and a Go Drainer left behind: their log, their relay log, their output."""

from __future__ import annotations

import json
from pathlib import Path, PosixPath

from tests.support.tried import tried

_HOME = Path(__file__).parents[1] / "golden" / "artefacts"


class _Artefact(PosixPath):
    """A path that says whose file it is when it is opened."""

    def __fspath__(self) -> str:
        of = {"drainer": "Go Drainer, by its files", "pump": "Go Pump, by its files"}
        if program := of.get(self.name.partition("_")[0]):
            tried(program, json.loads((_HOME / "info.json").read_text())["version"])
        return super().__fspath__()


ARTEFACTS: Path = _Artefact(_HOME)
"""The directory."""
