"""The checkpoint downstream: what is stored, and setting it to another commit_ts."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

from binlogd.drainer.checkpoint import BeginsAhead, Checkpoint
from binlogd.drainer.mysql.store import MySqlStore
from binlogd.drainer.rows.progress import LanePosition, PendingDdl
from binlogd.errors import ConfigError
from binlogd.host.disk import PosixDisk
from binlogd.log.directory import LOCK_FILE
from binlogd.node.into_mysql import make_store
from binlogd.node.replicated import newest_ts
from binlogd.settings.setup import Setup
from binlogd.tso import Tso


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """What is downstream. `is_set_back`: somebody changed the checkpoint since it was saved."""

    cluster_id: int
    checkpoint: Checkpoint
    lanes: tuple[LanePosition, ...]
    ddl: PendingDdl | None
    is_set_back: bool


async def look(setup: Setup) -> StoredCheckpoint:
    """What is stored. Raises ConfigError where there is nothing, DownstreamUnavailable."""
    with closing(_store(setup)) as store:
        return await _found(store)


async def set_to(setup: Setup, commit_ts: Tso) -> tuple[StoredCheckpoint, StoredCheckpoint]:
    """Before and after: the checkpoint and the progress of all lanes move together, in one
    transaction. The data is not touched: whoever sets it back has restored a copy of that moment,
    or knows that what follows may be applied once more. Raises ConfigError when a process is at
    work on this data directory, BeginsAhead for a moment that has not come."""
    if commit_ts > (newest := newest_ts(setup)):
        raise BeginsAhead(commit_ts, newest)
    lock = await PosixDisk().lock(setup.data_dir / LOCK_FILE) if setup.data_dir.exists() else None
    try:
        with closing(_store(setup)) as store:
            before = await _found(store)
            checkpoint = Checkpoint(commit_ts, ts_map=before.checkpoint.ts_map)
            await store.set_to(checkpoint, newest)
            return before, await _found(store)
    finally:
        if lock is not None:
            await lock.release()


def _store(setup: Setup) -> MySqlStore:
    return make_store(setup, setup.config.upstream.cluster_id)


async def _found(store: MySqlStore) -> StoredCheckpoint:
    checkpoint, restart = await store.state()
    if checkpoint is None:
        raise ConfigError(
            "the downstream has no checkpoint of this cluster; a first start begins behind"
            " drainer.initial-commit-ts"
        )
    return StoredCheckpoint(
        store.cluster_id, checkpoint, restart.lanes, restart.ddl, restart.is_set_back
    )
