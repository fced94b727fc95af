"""The file that keeps how a data directory spreads its transactions: `pump/shards`."""

from __future__ import annotations

from pathlib import Path

from binlogd.errors import ConfigError, LogFailed
from binlogd.log.checked_text import TEXT_BYTES_MAX
from binlogd.log.directory import value_directory
from binlogd.ports import Disk
from binlogd.pump.route import Routing

SHARDS_FILE = "shards"


async def routing_of(pump: Path, shards: int, disk: Disk) -> Routing:
    """What the directory was made with; a new one is made with `shards`, and in windows.

    Raises ConfigError for another count, as transactions would be torn apart, a damaged file, or
    where one or a shard is missing beside binlogs, LogFailed and OSError.
    """
    if shards < 1:
        raise ConfigError(f"pump.shards is {shards}: at least 1 is needed")
    path = pump / SHARDS_FILE
    is_kept = SHARDS_FILE in await disk.sizes(pump)
    logged = [await _logged_bytes(pump, number, disk) for number in range(shards)]
    while not is_kept and logged[-1] is not None:  # ends where no directory follows
        logged.append(await _logged_bytes(pump, len(logged), disk))
    if not is_kept and not any(logged):
        routing = Routing(shards)
        await disk.write_whole(path, routing.to_bytes())
        return routing
    routing = await kept_routing(pump, disk)
    if routing.shards != shards:
        raise ConfigError(
            f"pump.shards is {shards}, but {pump} was made with {routing.shards} shards ({path}): a"
            " transaction's prewrite and commit must meet, so the count cannot change; set"
            " pump.shards back"
        )
    if any(logged) and None in logged:
        raise ConfigError(
            f"{value_directory(pump, logged.index(None))} is missing, and all that was written"
            " there: bring it back; to go on without that, make it an empty directory"
        )
    return routing


async def _logged_bytes(pump: Path, number: int, disk: Disk) -> int | None:
    try:
        return sum((await disk.sizes(value_directory(pump, number))).values())
    except FileNotFoundError:
        return None


async def kept_routing(pump: Path, disk: Disk) -> Routing:
    """Of a directory that was made before. Raises ConfigError, LogFailed."""
    path = pump / SHARDS_FILE
    try:
        (content,) = await disk.read(path, [(0, TEXT_BYTES_MAX)])
    except FileNotFoundError as error:
        raise ConfigError(f"{path} is missing: no data of a Pump here, or bring it back") from error
    except OSError as error:
        raise LogFailed(path, error) from error
    try:
        return Routing.from_bytes(content)
    except ValueError as error:
        raise ConfigError(
            f"{path} should hold the number of shards, and is damaged: {error}; write `4 24` for 4"
            " shards, or the number alone for a directory of before there were windows; `binlogd"
            " check` says whether it is the right one"
        ) from error
