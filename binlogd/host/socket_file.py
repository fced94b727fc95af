"""A unix socket in the file system: made with its rights, and never in the way of the next start.

Source: tidb-binlog pump/server.go and pkg/util/net.go; the original binds to the host part of its
`socket` URL and stumbles over a file that is left behind.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path

from binlogd.errors import ConfigError

_MODE = 0o660
_PATH_BYTES_MAX = 107
"""What Linux has room for in a socket's address."""


class SocketFile:
    """A bound socket; whoever may write the file may write binlogs: its owner and group."""

    def __init__(self, path: Path) -> None:
        """Binds. A file that a dead process left behind is replaced.

        Raises ConfigError when another process listens there, when the file is no socket, or when
        it cannot be made.
        """
        self.path = path
        if len(os.fsencode(path)) > _PATH_BYTES_MAX:
            raise ConfigError(
                f"binlog-socket: {path}: longer than {_PATH_BYTES_MAX} bytes; use a shorter path"
            )
        _refuse_living(path)
        beside = path.with_name(f"{path.name[:8]}.{os.getpid()}")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            beside.unlink(missing_ok=True)
            self.socket.bind(os.fspath(beside))
            beside.chmod(_MODE)
            beside.replace(path)  # at no moment is it there with other rights
        except OSError as error:
            self.socket.close()
            beside.unlink(missing_ok=True)
            raise ConfigError(f"binlog-socket: {path}: {error.strerror or error}") from error
        self._inode = path.stat().st_ino

    def remove(self) -> None:
        """Removes the file, unless another process has put its own there."""
        try:
            if self.path.lstat().st_ino == self._inode:
                self.path.unlink()
        except FileNotFoundError:
            return


def _refuse_living(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except OSError:
        return  # not there; what is wrong with its directory, binding will say
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"binlog-socket: {path} is no socket; remove it or name another")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except OSError as error:
            if error.errno in (errno.ECONNREFUSED, errno.ENOENT):
                return
            raise ConfigError(f"binlog-socket: {path}: {error.strerror or error}") from error
    raise ConfigError(f"binlog-socket: {path} is in use by another process; stop it first")
