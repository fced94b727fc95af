"""The composition root: gives the parts a life and an end.

Start: upstream store, shards, Drainer, server last, so that every shard is in the merge before the
first write is accepted. Stop: no more prewrites, the Drainer finishes and saves a consistent
checkpoint, the server goes, the shards persist their marks. One event loop, one task group.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import structlog
import uvloop

from binlogd import telemetry
from binlogd.assembly import (
    Setup,
    Standalone,
    dialect,
    make_drainer,
    make_sink,
    node_id,
    open_pump,
    table_filter,
)
from binlogd.config import listen_address
from binlogd.drainer.restore import Restored
from binlogd.drainer.restore import restore as restore_from_relay
from binlogd.drainer.session import leading_error
from binlogd.drainer.translate import Translator
from binlogd.errors import BinlogdError, ConfigError, Unavailable, UpstreamUnavailable
from binlogd.host.clock import WallClock
from binlogd.host.disk import PosixDisk
from binlogd.operations import Node
from binlogd.pump.pump import LOCK_FILE, Pump
from binlogd.pump.service import PumpService, ServiceLimits
from binlogd.pump.state import Action, NodeState
from binlogd.routes.application import application
from binlogd.server import Server
from binlogd.snapshot.export import ExportOptions, ExportResult, Progress
from binlogd.snapshot.export import export as export_snapshot
from binlogd.tso import Tso
from binlogd.upstream.store import UpstreamStore

T = TypeVar("T")

GC_YOUNG_OBJECTS = 20_000
GIL_SWITCH_S = 0.001
"""How long a thread that comes back from a sync waits for a busy loop; Python's default is 5 ms."""
HEARTBEAT_S = 10.0
SETTLE_S = 600.0
"""How long a node that an operator closes waits for the outcomes of its prewrites."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
ABANDON_S = 3.0
STOP_S = 9.5
"""SIGTERM ends the process within ten seconds, drained or not."""

log = structlog.get_logger(__name__)


def serve(setup: Setup) -> int:
    """Runs the appliance until it is told to stop; the exit code."""
    telemetry.set_up_logging(setup.config.log_level)
    sys.setswitchinterval(GIL_SWITCH_S)
    try:
        return run(_serve(setup))
    except TimeoutError:
        # A thread may be in a system call that does not return, and would keep the process alive.
        # Nothing acknowledged depends on it: the log is read again at the next start.
        sys.stdout.flush()
        os._exit(1)


def restore(setup: Setup) -> Restored:
    """Brings the downstream to a consistent state from the relay log alone."""
    telemetry.set_up_logging(setup.config.log_level)
    return run(_restore(setup))


def run(main: Coroutine[Any, Any, T]) -> T:
    """One event loop for one command; of several errors at once, the one that counts is raised."""
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(main)
    except BaseExceptionGroup as group:
        error = leading_error(group)
        if error is None:
            raise
        raise error from group


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """A snapshot that somebody wants; `resolved_ts` is what a running Pump vouched for, or 0."""

    out: Path
    as_of: str
    format: str
    resolved_ts: Tso
    replaces_invalid_text: bool = False


def export(
    setup: Setup, request: ExportRequest, progress: Callable[[Progress], None]
) -> ExportResult:
    """Publishes a snapshot of the data directory's log."""
    telemetry.set_up_logging(setup.config.log_level, sys.stderr)
    return run(_export(setup, request, progress))


async def _export(
    setup: Setup, request: ExportRequest, progress: Callable[[Progress], None]
) -> ExportResult:
    store = await UpstreamStore.open(setup.data_dir / "upstream.db")
    try:
        upstream = await Standalone.open(setup, store)
        jobs = await upstream.history.known_jobs()
        cluster_id = upstream.cluster.cluster_id
    finally:
        await store.close()
    options = ExportOptions(
        data_dir=setup.data_dir,
        out=request.out,
        schema_history=b"[" + b",".join(job.raw for job in jobs) + b"]",
        as_of=request.as_of,
        format=request.format,
        cluster_id=cluster_id,
        resolved_ts=request.resolved_ts,
        invalid_text="replace" if request.replaces_invalid_text else "error",
    )
    return await export_snapshot(options, progress)


async def _serve(setup: Setup) -> int:
    disk = PosixDisk()
    store = await _open_store(setup, disk)
    try:
        upstream = await Standalone.open(setup, store)
        if await _was_restored(setup, upstream):
            return 0
        pump = await open_pump(setup, disk, upstream)
        drainer = (
            make_drainer(setup, disk, pump, upstream) if setup.config.drainer.enabled else None
        )
        service = PumpService(
            pump,
            upstream.cluster,
            ServiceLimits(message_bytes_max=setup.config.pump.max_message_size),
        )
        node = Node(
            await node_id(setup, disk),
            setup.config.addr,
            pump,
            service,
            upstream.cluster,
            WallClock(),
            drainer,
        )
        await _live(setup, node, upstream)
    finally:
        await store.close()
    return 0


async def _open_store(setup: Setup, disk: PosixDisk) -> UpstreamStore:
    await _make_data_dir(setup, disk)
    return await UpstreamStore.open(setup.data_dir / "upstream.db")


async def _make_data_dir(setup: Setup, disk: PosixDisk) -> None:
    try:
        await disk.make_directory(setup.data_dir)
    except OSError as error:
        raise _not_ours(setup.data_dir, error.strerror or str(error)) from error
    if not os.access(setup.data_dir, os.W_OK | os.X_OK):
        raise _not_ours(setup.data_dir, "no permission to write")


def _not_ours(data_dir: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"data-dir {data_dir}: {reason}; name a directory that user {os.getuid()} may write, by"
        " data-dir in the configuration or --data-dir"
    )


async def _live(setup: Setup, node: Node, upstream: Standalone) -> None:
    """From the first task to the last; raises what ended it, in a group."""
    server = Server(
        [node.service],
        application(node),
        sinks=node.service.sinks() if setup.config.pump.fast_lane else None,
    )
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(node.pump.run(), name="pump")
            replicating = group.create_task(_replicate(node, upstream), name="drainer")
            beating = group.create_task(_heartbeat(node, upstream), name="heartbeat")
            host, port = await server.start(*listen_address(setup.config.addr))
            _listen_for_signals(node)
            _settle_memory()
            log.info("service_started", host=host, port=port, node_id=node.node_id)
            await node.stopping.wait()
            beating.cancel()
            if upstream.cluster.cluster_id is None:
                replicating.cancel()  # nobody has written: there is nothing to drain
            await _stop(node, server, is_replicating=upstream.cluster.cluster_id is not None)
    except BaseException:
        await server.close()
        await _abandon(node.pump)
        raise
    await _register(node, upstream)
    log.info("service_stopped", state=node.pump.state.value)


def _settle_memory() -> None:
    """What is there at the start stays: the garbage collector need not look at it again.

    A binlog makes no cycles, so young objects may gather for longer than in a program that does.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_YOUNG_OBJECTS, 20, 50)


async def _abandon(pump: Pump) -> None:
    """After a failure: lets go of files, index and lock, so that the process can end."""
    try:
        async with asyncio.timeout(ABANDON_S):
            await pump.close()
    except (BinlogdError, TimeoutError) as error:
        log.warning("pump_abandoned", cause=str(error))


async def _replicate(node: Node, upstream: Standalone) -> None:
    """Begins with the first writer: a downstream keeps its progress by cluster."""
    if node.drainer is not None:
        await upstream.cluster.wait_known()
        await node.drainer.run()


def _listen_for_signals(node: Node) -> None:
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, node.stopping.set)


async def _stop(node: Node, server: Server, *, is_replicating: bool) -> None:
    """Prewrites are refused from here on; outcomes are taken until the server goes."""
    if node.pump.state is NodeState.CLOSING:
        await _settle(node)
    elif node.pump.state is NodeState.ONLINE:
        node.pump.request(Action.PAUSE)
    try:
        async with asyncio.timeout(STOP_S):
            if node.drainer is not None and is_replicating:
                await node.drainer.drain()
            await node.service.close()
            await server.close()
            await node.pump.close()
    except TimeoutError:
        log.warning("stop_timed_out", after_s=STOP_S)
        raise


async def _settle(node: Node) -> None:
    """Waits for the outcomes of all prewrites, until a signal says that there is no time."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(SETTLE_S) as patience:
            for number in STOP_SIGNALS:
                loop.add_signal_handler(number, lambda: patience.reschedule(loop.time()))
            await node.pump.settle()
    except (TimeoutError, Unavailable) as error:
        log.warning(
            "close_not_settled", cause=str(error), blocked_by=node.pump.statistics().blocked_by
        )
    finally:
        _listen_for_signals(node)


async def _heartbeat(node: Node, upstream: Standalone) -> None:
    while True:  # until cancelled, when the node stops
        await _register(node, upstream)
        await asyncio.sleep(HEARTBEAT_S)


async def _register(node: Node, upstream: Standalone) -> None:
    try:
        await upstream.registry.register(node.entry("pumps"))
        if node.drainer is not None:
            await upstream.registry.register(node.entry("drainers"))
    except UpstreamUnavailable as error:
        log.warning("heartbeat_failed", cause=str(error))


# --- the upstream is gone ----------------------------------------------------------------


async def _was_restored(setup: Setup, upstream: Standalone) -> bool:
    """Restores if that is what is left: a relay log, an upstream out of reach, no consistency."""
    if setup.relay_dir is None or not setup.config.drainer.enabled:
        return False
    try:
        await upstream.history.jobs()
    except UpstreamUnavailable as error:
        log.warning("upstream_unreachable", cause=str(error), relay=str(setup.relay_dir))
    else:
        return False
    try:
        return not (await _restore(setup, upstream.cluster.cluster_id)).was_consistent
    except (BinlogdError, BaseExceptionGroup) as error:
        log.warning("restore_failed", cause=str(error), consequence="only receiving")
        return False


async def _restore(setup: Setup, cluster_id: int | None = None) -> Restored:
    if setup.relay_dir is None:
        raise ConfigError("syncer.relay.log-dir is not set: there is no relay log to restore from")
    disk = PosixDisk()
    await _make_data_dir(setup, disk)
    lock = await disk.lock(setup.data_dir / LOCK_FILE)  # two that apply would be one too many
    try:
        return await restore_from_relay(
            disk=disk,
            relay_directory=setup.relay_dir,
            sink=make_sink(setup, disk, cluster_id),
            translator_for=lambda tracker: Translator(
                tracker, table_filter(setup.config.syncer), dialect(setup)
            ),
        )
    finally:
        await lock.release()
