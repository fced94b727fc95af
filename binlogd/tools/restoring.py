"""Restoring as it is configured: which relay log, into what."""

from __future__ import annotations

import random
from pathlib import Path

from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.files.log import is_log_file
from binlogd.drainer.mysql.named_apply import NamedApplier, NamedOptions
from binlogd.drainer.restore import Restored, restore
from binlogd.drainer.restore_original import restore_original
from binlogd.drainer.translate import Translator
from binlogd.host.disk import PosixDisk
from binlogd.node.assembly import (
    dialect,
    downstream_server,
    make_sink,
    make_store,
    table_filter,
    trash,
)
from binlogd.relay.position import suffix_of
from binlogd.settings.setup import Setup
from binlogd.tso import Tso


async def restore_from(
    setup: Setup, disk: PosixDisk, relay_dir: Path, cluster_id: int | None, to_ts: Tso | None
) -> Restored:
    """Restores from the relay log in its directory, whichever format it has."""
    sink, wanted = make_sink(setup, disk, cluster_id), table_filter(setup.config.syncer)
    if await has_original_relay(setup, disk, relay_dir):
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
    store = make_store(setup, None)
    try:
        return await store.stored()
    finally:
        store.close()


async def has_original_relay(setup: Setup, disk: PosixDisk, relay_dir: Path) -> bool:
    """Whether the relay log is one of the original: by its files, else by the configuration."""
    try:
        names = await disk.sizes(relay_dir)
    except FileNotFoundError:
        names = {}
    is_there = {
        "binlogd": any(suffix_of(name) is not None for name in names),
        "original": any(is_log_file(name) for name in names),
    }
    configured = setup.config.syncer.relay.format
    if is_there["binlogd"] != is_there["original"]:
        return is_there["original"]
    return configured == "original"
