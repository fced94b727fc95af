"""What a data directory looks like: the one place that knows where a Pump keeps what.

    upstream.db                      who is in the cluster, and the DDL history
    .lock                            held by the process that writes here
    reserve                          room to give up when the disk is full
    pump/shards                      how many shards there are
    pump/shard-N/index.db            the index of a shard
    pump/shard-N/value.gone          how far its log is deleted
    pump/shard-N/value/NNNNNN.vlog   its log, in segments
    pump/shard-N/value/*.spool       a large binlog that is coming, and becomes a segment

A Go Pump's has its segments in `value/`, and no shards. docs/FORMAT.md.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from binlogd.errors import ConfigError
from binlogd.log.index_file import FILES
from binlogd.log.pointer import FileId, segment_fid, segment_name

LOCK_FILE = ".lock"
RESERVE_FILE = "reserve"
STORE_FILE = "upstream.db"
VALUE = "value"
_SHARD = re.compile(r"shard-(\d+)")


class ShardDirectory(msgspec.Struct, frozen=True):
    """The directory of the segments, and the index beside it if there is one.

    `number` is that in the shard's name, 0 where it has none. `chosen` are the segments to read, if
    not all of them.
    """

    directory: Path
    index: Path | None = None
    chosen: tuple[Path, ...] = ()
    number: int = 0

    def segments(self) -> dict[FileId, Path]:
        """The segments by number, in order. Raises ConfigError for a name without one, OSError."""
        try:
            found = [
                (segment_fid(path.name), path) for path in self.chosen or self.directory.iterdir()
            ]
        except ValueError as error:
            raise ConfigError(f"{self.directory}: {error}: move that file away") from error
        return dict(sorted((fid, path) for fid, path in found if fid is not None))


def pump_directory(data_dir: Path) -> Path:
    """What a Pump writes."""
    return data_dir / "pump"


def shard_name(number: int) -> str:
    """A shard's name, and that of its directory."""
    return f"shard-{number}"


def value_directory(pump: Path, number: int) -> Path:
    """The segments of a shard."""
    return pump / shard_name(number) / VALUE


def segment_file(data_dir: Path, shard: int, fid: FileId) -> Path:
    """A segment."""
    return value_directory(pump_directory(data_dir), shard) / segment_name(fid)


def data_directory(value: Path) -> Path:
    """The data directory that has these segments of a shard."""
    return value.parent.parent.parent


def shards_below(path: Path) -> list[ShardDirectory]:
    """The shards of a data directory, of its `pump`, or of a directory of segments; none where
    there are none."""
    for pump in (pump_directory(path), path):
        if found := _shards(pump):
            return found
    for value in (path / VALUE, path):
        if value.is_dir() and any(value.glob("*.vlog")):
            return [ShardDirectory(value, _index(value))]
    return []


def shards_of(data_dir: Path) -> list[ShardDirectory]:
    """Those of a data directory of our own. Raises ConfigError where there is no segment."""
    found = _shards(pump_directory(data_dir))
    if not any(shard.segments() for shard in found):
        raise ConfigError(f"{data_dir} is no data directory: it has no pump/shard-*/value/*.vlog")
    return found


def _shards(pump: Path) -> list[ShardDirectory]:
    found = [
        (int(named[1]), value)
        for value in pump.glob(f"shard-*/{VALUE}")
        if (named := _SHARD.fullmatch(value.parent.name))
    ]
    return [ShardDirectory(value, _index(value), number=number) for number, value in sorted(found)]


def _index(value: Path) -> Path | None:
    index = value.with_name(FILES[0])
    return index if index.exists() else None
