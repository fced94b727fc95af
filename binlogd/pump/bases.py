"""Export bases: moments of which somebody keeps a snapshot, to go on from there later.

Whoever exported the whole database as of a timestamp needs every binlog behind it for the next,
incremental, export. One small file for each base, in the data directory, named like the base and
holding its timestamp: so it outlives the process, and a process that exports can declare one while
another runs the Pump, which looks before it deletes anything.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from binlogd.errors import ConfigError
from binlogd.host.disk import disk_errors
from binlogd.host.words import is_utf8
from binlogd.log.checked_text import TEXT_BYTES_MAX, checksummed, text_in
from binlogd.ports import Disk
from binlogd.pump.log.gc import Hold
from binlogd.tso import Tso

BASES_DIRECTORY = "bases"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_UNFINISHED = ".new"  # of a file that is being put in place


class Bases:
    """The export bases of one data directory."""

    def __init__(self, data_dir: Path, disk: Disk) -> None:
        self._directory = data_dir / BASES_DIRECTORY
        self._disk = disk

    async def declare(self, name: str, ts: Tso) -> None:
        """From now on every binlog with commit_ts > ts is kept; replaces what `name` said before.

        Declare first and look at the Pump's gc_ts then: above `ts`, it was too late. Raises
        ConfigError for a name that is no file name, LogFailed.
        """
        self._check(name)
        with disk_errors(self._directory):
            await self._disk.make_directory(self._directory)
            await self._disk.write_whole(self._directory / name, checksummed(b"%d" % ts))

    async def withdraw(self, name: str) -> bool:
        """Nobody needs it any more; whether it was there. Raises ConfigError, LogFailed."""
        self._check(name)
        with disk_errors(self._directory):
            if name not in await self._names():
                return False
            await self._disk.remove([self._directory / name])
        return True

    async def declared(self) -> Sequence[Hold]:
        """All of them by name. Raises ConfigError for a file that is none, LogFailed."""
        holds = []
        with disk_errors(self._directory):
            for name in await self._names():
                path = self._directory / name
                if not is_utf8(name):  # it could not be told to anybody
                    raise ConfigError(f"{self._directory}: {name!a} is no base: remove that file")
                with suppress(FileNotFoundError):  # withdrawn meanwhile
                    (content,) = await self._disk.read(path, [(0, TEXT_BYTES_MAX)])
                    holds.append(Hold(name, _timestamp(path, content)))
        return holds

    async def _names(self) -> list[str]:
        try:
            sizes = await self._disk.sizes(self._directory)
        except FileNotFoundError:
            return []
        return sorted(name for name in sizes if not name.endswith(_UNFINISHED))

    def _check(self, name: str) -> None:
        if not _NAME.fullmatch(name) or name.endswith(_UNFINISHED):
            raise ConfigError(
                f'"{name}" cannot name an export base: use up to 64 letters, digits, "_", "-", "."'
            )


def _timestamp(path: Path, content: bytes) -> Tso:
    try:
        return Tso(int(text_in(content)))
    except ValueError as error:
        raise ConfigError(
            f"{path}: holds no timestamp ({error}); write one into it, as a line, or remove it"
        ) from error
