"""Restoring as it is configured: which relay log, into what, and when nobody asked for it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Set
from contextlib import closing
from pathlib import Path
from random import Random

import msgspec
import structlog

from binlogd.drainer.backoff import Backoff
from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.files.log import is_log_file
from binlogd.drainer.restore import Restored, restore
from binlogd.drainer.translate import Translator
from binlogd.errors import BinlogdError, UpstreamUnavailable
from binlogd.host.clock import WallClock
from binlogd.host.disk import PosixDisk
from binlogd.log.directory import STORE_FILE
from binlogd.node.assembly import dialect, make_sink, trash
from binlogd.node.replicated import table_filter
from binlogd.relay.frame import suffix_of
from binlogd.settings.setup import Setup
from binlogd.tso import Tso
from binlogd.upstream.store import SkipList, UpstreamStore
from binlogd.upstream.upstream import Upstream

log = structlog.get_logger(__name__)


class Beside(msgspec.Struct, frozen=True):
    """What a restore goes by beside the configuration: the cluster, where it is known, and what an
    operator has decided to pass over."""

    cluster_id: int | None
    skipped: Set[Tso]


async def decided_skips(setup: Setup) -> Set[Tso]:
    """Those of the data directory; none where no binlogd has run."""
    if not (setup.data_dir / STORE_FILE).exists():
        return frozenset()
    async with await UpstreamStore.open(setup.data_dir / STORE_FILE) as store:
        return (await SkipList.open(store, WallClock())).commit_tss


class LastResort:
    """The upstream is gone, and a relay log is left: the downstream is made consistent, once.

    That nobody answers is believed after a while only: a host that comes up may be faster than its
    TiDB. The Pump receives meanwhile, and goes on afterwards, as the Drainer goes on asking.
    """

    def __init__(self, setup: Setup, disk: PosixDisk, upstream: Upstream, rng: Random) -> None:
        self._setup, self._disk, self._upstream, self._rng = setup, disk, upstream, rng
        self._is_decided = setup.relay_dir is None

    async def ready(self) -> None:
        """Returns when there is something to replicate, and it is known whether the upstream is
        gone; then the relay log has been applied."""
        if not self._is_decided and await self._is_gone():
            await self._restore()
        self._is_decided = True
        await self._upstream.cluster.wait_known()

    async def _is_gone(self) -> bool:
        clock = asyncio.get_running_loop().time
        until_s = clock() + self._setup.config.syncer.relay.restore_after
        backoff = Backoff(self._rng, first_s=1.0, max_s=10.0)
        while True:  # until it answers, or the time is over
            try:
                await self._upstream.history.index()
            except UpstreamUnavailable as error:
                left_s = until_s - clock()
                log.warning(
                    "upstream_unreachable",
                    cause=str(error),
                    restored_in_s=max(0.0, round(left_s, 1)),
                    relay=str(self._setup.relay_dir),
                )
                if left_s <= 0:
                    return True
                await asyncio.sleep(min(left_s, backoff.next_s()))
            else:
                return False

    async def _restore(self) -> None:
        assert self._setup.relay_dir is not None, "restoring without a relay log"
        upstream = self._upstream
        beside = Beside(upstream.cluster.cluster_id, upstream.skips.commit_tss)
        try:
            await restore_from(self._setup, self._disk, self._setup.relay_dir, beside, None)
        except (BinlogdError, OSError) as error:
            log.warning("restore_failed", cause=str(error), consequence="the upstream is awaited")


async def restore_from(
    setup: Setup, disk: PosixDisk, relay_dir: Path, beside: Beside, to_ts: Tso | None
) -> Restored:
    """Restores from the relay log in its directory, whichever format it has."""
    sink = make_sink(setup, disk, beside.cluster_id, beside.skipped)
    wanted = table_filter(setup.config.syncer, beside.skipped)
    if await has_original_relay(disk, relay_dir):
        # of a database alone, which the sink has imported
        from binlogd.drainer.mysql.named_apply import NamedApplier, NamedOptions
        from binlogd.drainer.restore_original import restore_original
        from binlogd.node.into_mysql import downstream_server

        server = downstream_server(setup)
        return await restore_original(
            relay_directory=relay_dir,
            sink=sink,
            applier=NamedApplier(server, NamedOptions(is_safe=True), random.Random()),
            table_filter=wanted,
            to_ts=to_ts,
        )
    return await restore(
        disk=disk,
        relay_directory=relay_dir,
        sink=sink,
        translator_for=lambda tracker: Translator(tracker, wanted, dialect(setup), trash(setup)),
        to_ts=to_ts,
    )


async def read_checkpoint(setup: Setup) -> Checkpoint | None:
    """The checkpoint of a database downstream; changes nothing. Raises ConfigError."""
    from binlogd.node.into_mysql import make_store

    with closing(make_store(setup, None)) as store:
        return await store.stored()


async def has_original_relay(disk: PosixDisk, relay_dir: Path) -> bool:
    """Whether what lies there is a relay log of the original, and none of ours."""
    try:
        names = await disk.sizes(relay_dir)
    except FileNotFoundError:
        return False
    has_ours = any(suffix_of(name) is not None for name in names)
    return not has_ours and any(map(is_log_file, names))
