"""The checkpoint of the file sink: `savepoint`, the TOML file of the original, and a little more.

The table `[written]` is ours: up to which byte of which file everything was durable when this was
saved. A restart verifies from there on and knows what is acknowledged from what may be torn.

Source: tidb-binlog drainer/checkpoint/file.go; docs/FORMAT.md, "File sink".
"""

from __future__ import annotations

import re
import tomllib

import google_crc32c
import msgspec

from binlogd.drainer.checkpoint import Checkpoint
from binlogd.errors import ConfigError
from binlogd.tso import NO_TS, Tso

NAME = "savepoint"


class DurableUpTo(msgspec.Struct, frozen=True):
    """Everything before `offset` of this file, and all files before it, is durable. `commit_ts` is
    the last transaction of it."""

    file: str
    offset: int
    commit_ts: Tso = msgspec.field(name="commitTS", default=NO_TS)


class Savepoint(msgspec.Struct, frozen=True):
    """A checkpoint of a file sink; `written` is None where the original wrote it."""

    checkpoint: Checkpoint
    written: DurableUpTo | None = None

    def to_toml(self) -> bytes:
        """The text of the file."""
        checkpoint = self.checkpoint
        lines = [
            f"consistent = {'true' if checkpoint.consistent else 'false'}",
            f"commitTS = {checkpoint.commit_ts}",
            f"schema-version = {checkpoint.schema_version}",
        ]
        if checkpoint.ts_map:
            lines += ["", "[ts-map]"]
            lines += [f'"{name}" = {ts}' for name, ts in checkpoint.ts_map.items()]
        if self.written is not None:
            lines += [
                "",
                "[written]",
                f'file = "{self.written.file}"',
                f"offset = {self.written.offset}",
                f"commitTS = {self.written.commit_ts}",
            ]
            lines.insert(0, _CLAIM)
            before = "\n".join(lines).encode()
            lines.append(f'{_CHECKSUM} = "{google_crc32c.value(before):08x}"')
        return ("\n".join(lines) + "\n").encode()

    @classmethod
    def from_toml(cls, text: bytes, origin: str) -> Savepoint:
        """Reads what `to_toml`, the original and `binlogctl -cmd generate_meta` write.

        The last adds lines of plain text below its one key; lines that cannot be TOML are passed
        over. Raises ConfigError for a text that is nobody's; `origin` is named in it.
        """
        try:
            kept = [line for line in text.decode().splitlines() if _TOML_LINE.fullmatch(line)]
            stored = msgspec.convert(tomllib.loads("\n".join(kept)), _Stored)
        except (ValueError, msgspec.ValidationError) as error:
            raise ConfigError(
                f"{origin} is no savepoint of a Drainer ({error}); correct or delete it, and give"
                " drainer.initial-commit-ts"
            ) from error
        _check_whole(text, stored.written, origin)
        checkpoint = Checkpoint(
            Tso(stored.commit_ts), stored.consistent, stored.schema_version, stored.ts_map
        )
        written = stored.written
        place = DurableUpTo(written.file, written.offset, written.commit_ts) if written else None
        return cls(checkpoint, place)


class _StoredWritten(DurableUpTo, frozen=True):
    checksum: str = ""


class _Stored(msgspec.Struct):
    commit_ts: int = msgspec.field(name="commitTS")
    consistent: bool = False
    schema_version: int = msgspec.field(name="schema-version", default=0)
    ts_map: dict[str, int] = msgspec.field(name="ts-map", default_factory=dict)
    written: _StoredWritten | None = None


_CHECKSUM = "checksum"
"""The last key of `[written]`: the CRC-32C of all before its line."""
_CLAIM = "# the last line is a checksum"
"""The first line: what was cut behind a key looks as the original writes it. Older ones lack it."""


def _check_whole(text: bytes, written: _StoredWritten | None, origin: str) -> None:
    """One bit makes another number of a number. Raises ConfigError."""
    before, found, _ = text.rpartition(f"\n{_CHECKSUM} = ".encode())
    stored = written.checksum if written is not None else ""
    if not text.endswith(b"\n") or (
        (stored or text.startswith(_CLAIM.encode()))
        and (not found or stored != f"{google_crc32c.value(before):08x}")
    ):
        raise ConfigError(
            f"{origin} is not as it was written: it was cut, its checksum does not match, or"
            " somebody changed it; if that was meant, remove its first line and its table [written]"
        )


_TOML_LINE = re.compile(r"\s*([\w\"'.-]+\s*=.*|\[[^\]]+\]|#.*|)\s*")
