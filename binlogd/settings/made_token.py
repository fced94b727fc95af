"""The admin token of a node that is given none: made at its first start, and kept in its data
directory, where whoever may read it is its owner.

No address and no name says who asks: browsers, proxies and the networks of containers speak from
this machine for anybody. A file with the rights 0600 does, and commands on this machine read it.
"""

from __future__ import annotations

import os
from pathlib import Path

from binlogd.errors import ConfigError
from binlogd.settings.operators import TOKEN_CHARS_MIN

TOKEN_FILE = "admin-token"
_OF_OTHERS = 0o077
_TOKEN_BYTES = 32


def made_token(data_dir: Path) -> str:
    """That of a node with this data directory, which nobody else has open; made where there is
    none, or one that others could read. Raises ConfigError."""
    path = data_dir / TOKEN_FILE
    try:
        if path.exists() and not path.stat().st_mode & _OF_OTHERS:
            kept = path.read_text().strip()
            if len(kept) >= TOKEN_CHARS_MIN:
                return kept
        beside = path.with_suffix(".new")
        beside.unlink(missing_ok=True)
        import secrets  # whoever reads it makes none

        token = secrets.token_hex(_TOKEN_BYTES)
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(token + "\n")
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        raise ConfigError(f"data-dir: {path}: {error.strerror or error}") from error
    return token


def token_of_node(data_dir: Path) -> str:
    """What a command of the node's owner reads; "" for anybody else, and where no node was yet."""
    try:
        return (data_dir / TOKEN_FILE).read_text().strip()
    except OSError:
        return ""
