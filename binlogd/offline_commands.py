"""What a command does with a data directory and a registry without a node that runs."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from binlogd.errors import ConfigError
from binlogd.host.clock import WallClock
from binlogd.host.disk import PosixDisk, check_writable
from binlogd.host.loop import run
from binlogd.log.directory import STORE_FILE
from binlogd.node.upstreams import open_registry
from binlogd.ports import Registry
from binlogd.settings.setup import Setup
from binlogd.tso import Tso
from binlogd.upstream.store import SkipEntry, SkipList, UpstreamStore

T = TypeVar("T")


def skip(setup: Setup, commit_ts: Tso, reason: str) -> bool:
    """Records for the next start that a transaction is passed over; False if it was recorded."""

    async def record() -> bool:
        async with await open_existing(setup) as store:
            return await (await SkipList.open(store, WallClock())).add(commit_ts, reason)

    return run(record())


def decided_skips(setup: Setup) -> list[SkipEntry]:
    """What was recorded so far, out of the data directory."""

    async def read() -> list[SkipEntry]:
        async with await open_existing(setup) as store:
            return await store.skips()

    return run(read())


def with_registry(setup: Setup, act: Callable[[Registry], Coroutine[Any, Any, T]]) -> T:
    """What `act` makes of the registry, whether the node runs or not."""

    async def opened() -> T:
        async with open_registry(setup, lambda: open_existing(setup)) as registry:
            return await act(registry)

    return run(opened())


async def open_store(setup: Setup, disk: PosixDisk) -> UpstreamStore:
    """What the node knows of its upstream, in a directory that is made. Raises ConfigError."""
    await make_data_dir(setup, disk)
    return await UpstreamStore.open(setup.data_dir / STORE_FILE)


async def open_existing(setup: Setup) -> UpstreamStore:
    """The same, of a directory that is there. Raises ConfigError."""
    check_has_run(setup)
    return await open_store(setup, PosixDisk())


def check_has_run(setup: Setup) -> None:
    """Raises ConfigError for a data directory that no node has made."""
    if not (setup.data_dir / STORE_FILE).exists():
        raise ConfigError(
            f"data-dir {setup.data_dir}: no binlogd has run there yet; name the directory of the"
            " one that is meant, by --data-dir or the --config that it is started with"
        )


async def make_data_dir(setup: Setup, disk: PosixDisk) -> None:
    """Makes the data directory, if it is not there. Raises ConfigError where nobody may write."""
    check_writable("data-dir", setup.data_dir)
    try:
        await disk.make_directory(setup.data_dir)
    except OSError as error:
        raise ConfigError(f"data-dir {setup.data_dir}: {error.strerror or error}") from error
