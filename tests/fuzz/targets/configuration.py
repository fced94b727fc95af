"""A configuration file: what it says, or ConfigError with all that is wrong."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from binlogd.errors import ConfigError
from binlogd.settings.config import parse

_SHIPPED = Path(__file__).parents[3] / "config"


def seeds() -> list[bytes]:
    """What is shipped, and its parts."""
    found = []
    for path in sorted(_SHIPPED.glob("*.toml")):
        text = path.read_text()
        found += [part.encode() for part in text.split("\n\n") if part.strip()]
    found.append(b'[pump]\ngc = "7d"\n[syncer]\ndb-type = "mysql"\n[syncer.to]\nport = 1')
    found.append(b'[[syncer.replicate-do-table]]\ndb-name = "~^a.*"\ntbl-name = "b"')
    return found


def run(data: bytes) -> None:
    """One file."""
    with suppress(ConfigError):
        parse(data.decode("utf-8", "replace"), "file.toml")
