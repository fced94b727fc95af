"""Which commit of the project a run tries: it is told with what the run found, since the report may
be made of it when there are others."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path


@cache
def commit() -> str:
    """The one that this process began with; `unknown` where there is no repository."""
    said = ("git", "rev-parse", "--short", "HEAD")
    here = Path(__file__).parent
    found = subprocess.run(said, cwd=here, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"
