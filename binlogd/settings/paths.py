"""Where a relative path counts from: one rule for every key that names a file or a directory.

What the file says, or a variable in its place, counts from the directory of the file as it was
named; without a file, and for a word of the command line, from the working directory. What holds
data where the older rules put it (`data-dir` in the working directory, a relay log or a file sink
below `data-dir`) is refused with the line that keeps it, so that no start begins with nothing.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from binlogd.errors import ConfigError
from binlogd.settings.config import Config
from binlogd.settings.effects import flattened

_DATA_DIR, _HISTORY = "data-dir", "upstream.schema-history"
_ONCE_BELOW_DATA_DIR = ("syncer.relay.log-dir", "syncer.to.dir", "binlog-socket")
_NAMES = (_DATA_DIR, "schema-history", "log-dir", "dir", "binlog-socket", "url", "base")
_FILES = ("ssl-ca", "ssl-cert", "ssl-key", "ssl-key-password-file", "admin-token-file")
_SECRETS = ("password-file", "kafka-token-file", "schema-registry-password-file")
PATHS = [
    key for key, _ in flattened(Config()) if key.rpartition(".")[2] in (*_NAMES, *_FILES, *_SECRETS)
]
"""Every key that names a place on this machine, or may."""
_UNIX = "unix://"
_DATA_MARKS = ("pump", "upstream.db")
"""Of which every data directory has one (log/directory.py)."""


def base_of(path: Path | None) -> Path:
    """The directory of a configuration file, by the name that it was called by: a link that is
    turned to another file moves no data."""
    return Path.cwd() if path is None else path.absolute().parent


def placed(config: Config, base: Path, typed: Collection[str]) -> dict[str, str]:
    """The paths that read otherwise once they count from their place; `typed` are keys of the
    command line. Raises ConfigError where data would be left behind."""
    found: dict[str, str] = {}
    for key, value in flattened(config):
        name = str(value).removeprefix(_UNIX)
        if key not in PATHS or not name or "://" in name:
            continue
        if key not in typed and not os.path.isabs(name):
            place = base / name
            _check_left_behind(key, name, place, Path(found.get(_DATA_DIR, config.data_dir)))
            name = name if key == _DATA_DIR and base == Path.cwd() else str(place)
        if name != value:
            found[key] = name
    return found


def _check_left_behind(key: str, name: str, place: Path, data_dir: Path) -> None:
    """`flattened` tells data-dir first, so that it is in its place for the others."""
    if key in (_DATA_DIR, _HISTORY):
        before = Path.cwd() / name
    elif key in _ONCE_BELOW_DATA_DIR:
        before = data_dir.absolute() / name
    else:
        return
    if before != place.absolute() and _holds(key, before) and not _holds(key, place):
        raise ConfigError(
            f'{key}: "{name}" is {place.absolute()} now, where nothing is, and was {before}, where'
            " data is: a relative path counts from the directory of the configuration file;"
            f' write {key} = "{before}", or move what is there'
        )


def _holds(key: str, place: Path) -> bool:
    """What may not be looked at is nothing, unless it is known to be a directory."""
    if key == _DATA_DIR:
        return any(os.path.exists(place / mark) for mark in _DATA_MARKS)
    try:
        return os.path.isfile(place) or bool(os.listdir(place))
    except OSError:
        return os.path.isdir(place)
