"""The composition root: gives the parts a life and an end.

Start: upstream store, shards, Drainer, server last, so that every shard is in the merge before the
first write is accepted. Stop: no more prewrites, the Drainer finishes and saves a consistent
checkpoint, the server goes, the shards persist their marks. One event loop, one task group.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING

import structlog

from binlogd.drainer.backoff import Backoff
from binlogd.drainer.restore import Restored
from binlogd.errors import BinlogdError, ConfigError, UpstreamUnavailable
from binlogd.grpc.bounds import Http2Limits
from binlogd.grpc.server import Servable
from binlogd.host.certificates import Expiry
from binlogd.host.clock import WallClock
from binlogd.host.disk import PosixDisk
from binlogd.host.loop import run
from binlogd.log.directory import LOCK_FILE
from binlogd.node.assembly import (
    downstream_of,
    identity,
    make_finder,
    make_replication,
    open_pump,
    registered_pumps,
)
from binlogd.node.bulkhead import Part
from binlogd.node.closing import Closing
from binlogd.node.membership import Identity, Membership
from binlogd.node.operations import Node
from binlogd.node.problems import OPEN_PORT
from binlogd.node.reach import reach
from binlogd.node.receiving import Receiving, RemoteDrainers
from binlogd.node.reloading import Reloading
from binlogd.node.replication import FirstContact
from binlogd.node.starting import RELOAD_SIGNAL, STOP_S, STOP_SIGNALS, stoppable
from binlogd.node.tracing import make_tracing
from binlogd.node.upstreams import open_upstream
from binlogd.node.watching import Watch
from binlogd.offline_commands import make_data_dir, open_store
from binlogd.placement.calls import PumpToCome
from binlogd.placement.pd_service import AdvertisedAddress
from binlogd.placement.stand_in import StandIn
from binlogd.ports import NodeStatus
from binlogd.pump.pump import Pump
from binlogd.pump.reserve import room_in
from binlogd.pump.rpc.cistern import CisternService
from binlogd.pump.rpc.in_flight import ServiceLimits
from binlogd.pump.rpc.service import PumpService
from binlogd.pump.state import Action, NodeState
from binlogd.serving.finder import RowIndexer
from binlogd.serving.routes.application import application
from binlogd.serving.routes.awaiting import Awaiting
from binlogd.serving.routes.guard import Guard
from binlogd.serving.server import Server, ServerLimits, check_address
from binlogd.settings.config import HELD_BYTES_MAX, Config, tls_tables
from binlogd.settings.effects import without_effect
from binlogd.settings.made_token import made_token
from binlogd.settings.operators import peers
from binlogd.settings.quantities import listen_address
from binlogd.settings.setup import Setup, client_tls, server_tls, tls_files
from binlogd.telemetry.logs import set_up_logging
from binlogd.telemetry.traces import Traces
from binlogd.tools.restoring import Beside, LastResort, decided_skips, restore_from
from binlogd.tso import NO_TS, Tso
from binlogd.upstream.entry import DRAINER, PUMP
from binlogd.upstream.upstream import Upstream

if TYPE_CHECKING:
    from binlogd.snapshot.export_queue import ExportQueue

GIL_SWITCH_S = 0.001
"""How long a thread that comes back from a sync waits for a busy loop; Python's default is 5 ms."""
TICK_S = 10.0
DRAINERS_EVERY_S = 600.0
"""Between two looks at who is behind what garbage collection deletes."""
DRAINER_HEARTBEAT_S = 1.0
ABANDON_S = 3.0
ARENAS_MAX = 2
_PD_LEAVE_S = 0.1  # whoever is connected then comes back to the node itself
_M_ARENA_MAX = -8

log = structlog.get_logger(__name__)


def serve(setup: Setup, read_again: Callable[[], Setup]) -> int:
    """Runs the appliance until it is told to stop; the exit code. `read_again` reads the
    configuration anew when that is asked for, and may raise ConfigError."""
    gc.freeze()  # what was imported
    reloading = Reloading(setup, read_again)
    set_up_logging(setup.config.log_level, reloading.log_lines)
    sys.setswitchinterval(GIL_SWITCH_S)
    share_arenas()
    try:
        return run(stoppable(_serve(reloading), lambda: reloading.reload(lambda: None)))
    except TimeoutError:
        # A thread may be in a system call that does not return, and would keep the process alive.
        # Nothing acknowledged depends on it: the log is read again at the next start.
        sys.stdout.flush()
        os._exit(1)


def restore(setup: Setup, to_ts: Tso | None = None) -> Restored:
    """Brings the downstream to a consistent state from the relay log alone."""
    return run(_restore(setup, to_ts))


async def _serve(reloading: Reloading) -> int:
    """The lock is the last thing given up: who has it then may copy or remove the directory. After
    a failure it goes with the process, since a thread may still write."""
    disk = PosixDisk()
    await check_address(*listen_address(reloading.setup.config.addr))
    await make_data_dir(reloading.setup, disk)
    async with room_in(reloading.setup.data_dir, disk):
        lock = await disk.lock(reloading.setup.data_dir / LOCK_FILE)
        async with (
            await open_store(reloading.setup, disk) as store,
            await open_upstream(reloading.setup, store) as upstream,
        ):
            code = await _serve_on(reloading, disk, upstream)
        await lock.release()
        return code


async def _serve_on(reloading: Reloading, disk: PosixDisk, upstream: Upstream) -> int:
    setup = reloading.setup
    for key, reason in without_effect(setup.config, Config()):
        log.warning("key_without_effect", key=key, reason=reason)
    names = await identity(setup, disk)
    tracing = make_tracing(setup, names.pump)
    traces = tracing.traces if tracing is not None else None
    receiving = await _open_receiving(setup, disk, upstream, traces) if setup.has_pump else None
    pump = receiving.pump if receiving is not None else None
    pumps = registered_pumps(setup, pump, upstream, names)
    node = Node(
        identity=names,
        receiving=receiving,
        cluster=upstream.cluster,
        registry=upstream.registry,
        tso=upstream.tso,
        clock=WallClock(),
        drainer=make_replication(
            lambda: reloading.setup,
            disk,
            pump,
            upstream,
            pumps,
            FirstContact(
                LastResort(setup, disk, upstream, Random()).ready,
                lambda: reach(reloading.setup),
                Backoff(Random()),
            ),
            traces=traces,
        ),
        tracing=tracing,
        skips=upstream.skips,
        reload_now=reloading.reload,
        finder=make_finder(setup, upstream),
        pumps=pumps,
        upstream=upstream.statistics,
        downstream=lambda: downstream_of(reloading.setup),
        known_jobs=upstream.history.known_jobs,
        certificates=Expiry(map(tls_files, tls_tables(setup.config).values())),
        open_addr=setup.config.addr if setup.is_open else "",
        stand_in=_stand_in(setup, upstream, names, pump),
        log_lines=reloading.log_lines,
    )
    asyncio.get_running_loop().add_signal_handler(RELOAD_SIGNAL, node.reload)
    reloading.made_token = made_token(setup.data_dir)  # the directory is ours by now
    if setup.is_open:
        log.warning("port_is_open", addr=setup.config.addr, consequence=OPEN_PORT)
    guard = Guard(
        lambda: reloading.admin_token,
        lambda: reloading.operators,
        lambda: reloading.host_names,
    )
    return await _live(setup, node, upstream, guard)


def _stand_in(
    setup: Setup, upstream: Upstream, names: Identity, pump: Pump | None
) -> StandIn | None:
    """What is served to those who have no PD; None where there is one, or nobody is to think so."""
    if upstream.own_pd is None:
        return None
    scheme = "https" if server_tls(setup) is not None else "http"
    return StandIn(
        AdvertisedAddress(names.pump, f"{scheme}://{names.host}"),
        upstream.own_pd,
        upstream.cluster,
        WallClock(),
        lambda: pump.newest_commit_ts if pump is not None else NO_TS,
    )


async def _open_receiving(
    setup: Setup, disk: PosixDisk, upstream: Upstream, traces: Traces | None
) -> Receiving:
    pump = await open_pump(setup, disk, upstream, traces)
    limits = ServiceLimits(
        message_bytes_max=setup.config.pump.max_message_size,
        bytes_in_flight_max=setup.config.pump.memory_budget // 2,
        spooled_bytes_min=HELD_BYTES_MAX,
    )
    return Receiving(pump, PumpService(pump, upstream.cluster, limits, pump.spools))


async def _live(setup: Setup, node: Node, upstream: Upstream, guard: Guard) -> int:
    """From the first task to the last; the exit code. Raises what ended it, in a group."""
    node.membership = membership = Membership(upstream.registry, node.entries, client_tls(setup))
    security = setup.config.security
    receiving = node.receiving
    node.exports = queue = _exports(setup, upstream, receiving)
    watch = Watch(node.own_status, node.counts, node.decided_skips, node.clock)
    server = Server(
        _services(node),
        application(
            node, guard, watch.hub, queue, node.stand_in.documents if node.stand_in else None
        ),
        ServerLimits(
            connections_max=security.connections_max,
            connections_per_client_max=security.connections_per_client_max,
            http2=Http2Limits(
                idle_s=security.connection_idle_timeout, peers_from=peers(security.peers_from)
            ),
        ),
        sinks=receiving.service.sinks() if receiving and setup.config.pump.fast_lane else None,
        tls=server_tls(setup),
    )
    was_done = True
    try:
        async with asyncio.TaskGroup() as group:
            keep = partial(node.bulkhead.start, group)
            working = [keep(f"upstream {type(each).__name__}", each.run) for each in upstream.works]
            await _by_registry(
                setup,
                upstream,
                membership,
                partial(_forget_former_names, node, upstream, membership),
            )
            working += [keep(part, run) for part, run in _beside(setup, node, upstream, queue)]
            if receiving is not None:
                group.create_task(receiving.pump.run(), name="pump")
            if node.drainer is not None:
                group.create_task(node.drainer.run(), name="drainer")
            await _announce(setup, node, upstream, membership)
            heartbeat_s = _heartbeat_s(setup, upstream)
            passing = [
                keep("heartbeat", partial(membership.keep_fresh, heartbeat_s)),
                keep("drainers", partial(_watch_drainers, node)),
                keep("ticks", partial(_tell, node)),
                keep("watch", watch.run),
            ]
            host, port = await server.start(*listen_address(setup.config.addr), setup.binlog_socket)
            _listen_for_signals(node)
            gc.collect()
            gc.freeze()  # what is there stays: the garbage collector need not look at it again
            log.info("service_started", host=host, port=port, node_id=node.own_status().node_id)
            await node.stopping.wait()
            if receiving is not None and receiving.pump.state is NodeState.CLOSING:
                timeout_s = setup.config.pump.close_timeout
                was_done = await _settle(node, receiving, membership, timeout_s)
            for each in passing:
                each.cancel()
            await _stop(node, server)
            for each in working:
                each.cancel()
    except BaseException:
        await server.close()
        if receiving is not None:
            await _abandon(receiving.pump)
        raise
    await membership.leave()
    log.info("service_stopped", state=node.state.value)
    return 0 if was_done else 1


def _exports(setup: Setup, upstream: Upstream, receiving: Receiving | None) -> ExportQueue | None:
    """Who exports when the service is asked; None where nobody is to."""
    if not setup.config.export.dir:
        return None
    from binlogd.exporting import export_queue_for  # reads Spark's files, which others need not

    return export_queue_for(
        setup, upstream, lambda: receiving.pump.max_commit_ts if receiving else NO_TS
    )


def _beside(
    setup: Setup, node: Node, upstream: Upstream, queue: ExportQueue | None
) -> Iterator[Part]:
    """What works until the Pump has stopped."""
    if queue is not None:
        yield "exports", queue.run
    if node.tracing is not None:
        yield "traces", node.tracing.run
    if node.receiving is not None:
        pump = node.receiving.pump
        yield (
            "remote drainers",
            RemoteDrainers(pump, upstream.registry, node.identity.drainer).run,
        )
        yield "row index", RowIndexer(setup.data_dir, partial(_log_bytes, pump)).run
        if setup.config.archive.url:
            from binlogd.archive.archiver import HOLD, archiving

            node.archiver = archiver = archiving(
                setup,
                upstream,
                pump.logs,
                lambda ts: pump.caretaker.hold(HOLD, ts),
                lambda: pump.max_commit_ts,
            )
            yield "archiver", archiver.run


def _log_bytes(pump: Pump) -> int:
    return sum(each.size_bytes for _, segments in pump.logs() for each in segments)


async def _tell(node: Node) -> None:
    """A line of figures now and then, for whoever reads the log afterwards."""
    while True:  # until cancelled, when the node stops
        await asyncio.sleep(TICK_S)
        log.info("node_ticked", **node.figures())


async def _watch_drainers(node: Node) -> None:
    while True:  # until cancelled, when the node stops
        await asyncio.sleep(DRAINERS_EVERY_S)
        try:
            await node.look_at_drainers()
        except UpstreamUnavailable as error:
            log.warning("drainers_unknown", cause=str(error))


def _services(node: Node) -> list[Servable]:
    """Of the halves that there are."""
    services: list[Servable] = []
    if node.receiving is not None:
        services.append(node.receiving.service)
    if node.drainer is not None:
        services.append(CisternService(node.look_at_pumps))
    if node.stand_in is not None:
        services += node.stand_in.services
    return services


def _heartbeat_s(setup: Setup, upstream: Upstream) -> float:
    """A Drainer's entry says what nobody needs any more, so it is written as often as the
    original's where somebody else reads it."""
    interval_s = setup.config.pump.heartbeat_interval
    if setup.has_drainer and upstream.shares_registry:
        return min(interval_s, DRAINER_HEARTBEAT_S)
    return interval_s


async def _announce(setup: Setup, node: Node, upstream: Upstream, membership: Membership) -> None:
    """In the registry, and known to the Drainers, which look there before they answer. Where it is
    served by this very node, in the place of a PD, it has to be there first: with the server as a
    whole the Pump would take binlogs that no Drainer waits for. Until then its writers and readers
    are told to come again."""
    if node.stand_in is None or not await membership.has_to_tell():
        await _by_registry(setup, upstream, membership, membership.announce)
        return
    limits = ServerLimits(
        leave_timeout_s=_PD_LEAVE_S,
        flush_timeout_s=_PD_LEAVE_S,
        http2=Http2Limits(peers_from=peers(setup.config.security.peers_from)),
    )
    services = [*node.stand_in.services, PumpToCome()]
    server = Server(services, limits=limits, tls=server_tls(setup))
    await server.start(*listen_address(setup.config.addr))
    log.info("pd_serves_first", cause="Drainers look at the registry before they know this Pump")
    try:
        await membership.announce()
    finally:
        await server.close()


async def _by_registry(
    setup: Setup, upstream: Upstream, membership: Membership, act: Callable[[], Awaitable[None]]
) -> None:
    """Waits for the registry where it is somebody else's, and says so at the port if that takes
    long."""
    if upstream.kind != "pd":
        await act()
        return
    async with Awaiting(*listen_address(setup.config.addr), server_tls(setup)) as awaiting:
        await membership.patiently(act, awaiting.say)


async def _forget_former_names(node: Node, upstream: Upstream, membership: Membership) -> None:
    """A Drainer that was here under another name, or is here no more, would hold every close. So
    would a Pump hold every merge; where the registry is in our data directory, its log is ours."""
    former = [
        each
        for each in await membership.others(DRAINER)
        if each.node_id in (node.identity.pump, node.identity.drainer)
        or each.host == node.identity.host
    ]
    if node.receiving is not None and upstream.kind != "pd":
        pumps = await membership.others(PUMP)
        former += [each for each in pumps if each.host == node.identity.host]
    for each in former:
        offline = replace(each, state=NodeState.OFFLINE.value, is_alive=None)
        await node.registry.register(offline)


def share_arenas() -> None:
    """Keeps glibc from an arena for each thread, before there are threads: what one arena has free
    is of no use to another. Threads of ours seldom allocate at the same time. MALLOC_ARENA_MAX in
    the environment counts before this; a libc without arenas has no `mallopt`."""
    libc = ctypes.CDLL(None)
    if "MALLOC_ARENA_MAX" not in os.environ and hasattr(libc, "mallopt"):
        libc.mallopt(_M_ARENA_MAX, ARENAS_MAX)


async def _abandon(pump: Pump) -> None:
    """After a failure: lets go of files and index, so that the process can end."""
    try:
        async with asyncio.timeout(ABANDON_S):
            await pump.close()
    except (BinlogdError, TimeoutError) as error:
        log.warning("pump_abandoned", cause=str(error))


def _listen_for_signals(node: Node) -> None:
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, node.stopping.set)
    loop.add_signal_handler(RELOAD_SIGNAL, node.reload)


async def _stop(node: Node, server: Server) -> None:
    """Prewrites are refused from here on; outcomes are taken until the server goes."""
    receiving = node.receiving
    if receiving is not None and receiving.pump.state is NodeState.ONLINE:
        receiving.pump.request(Action.PAUSE)
    try:
        async with asyncio.timeout(STOP_S):
            if node.drainer is not None:
                await node.drainer.end()
            if receiving is not None:
                await receiving.service.close()
            if node.stand_in is not None:
                node.stand_in.close()
            await server.close()
            if receiving is not None:
                await receiving.pump.close()
    except TimeoutError:
        log.warning("stop_timed_out", after_s=STOP_S)
        raise


async def _settle(
    node: Node, receiving: Receiving, membership: Membership, timeout_s: float
) -> bool:
    """Waits until nobody needs this Pump any more, or a signal says that there is no time.

    When it may not go offline it will end as paused. False when the time was over.
    """

    async def consumers() -> list[NodeStatus]:
        return [*node.consumers(), *await membership.others(DRAINER)]

    loop = asyncio.get_running_loop()
    signalled = asyncio.Event()
    closing = receiving.closing = Closing(receiving.pump, consumers)
    try:
        async with asyncio.timeout(timeout_s) as patience:

            def give_up() -> None:
                signalled.set()
                patience.reschedule(loop.time())

            for number in STOP_SIGNALS:
                loop.add_signal_handler(number, give_up)
            await closing.wait()
    except TimeoutError:
        log.warning(
            "close_given_up",
            reason=closing.reason,
            cause="a signal" if signalled.is_set() else f"close-timeout: {timeout_s:g} s are over",
            consequence="the node ends as paused; close it again when that is mended",
        )
        receiving.pump.give_up_closing()
    finally:
        _listen_for_signals(node)
    return receiving.pump.state is NodeState.CLOSING or signalled.is_set()


async def _restore(setup: Setup, to_ts: Tso | None) -> Restored:
    if setup.relay_dir is None:
        raise ConfigError("syncer.relay.log-dir is not set: there is no relay log to restore from")
    disk = PosixDisk()
    await make_data_dir(setup, disk)
    lock = await disk.lock(setup.data_dir / LOCK_FILE)  # two that apply would be one too many
    try:
        beside = Beside(None, await decided_skips(setup))
        return await restore_from(setup, disk, setup.relay_dir, beside, to_ts)
    finally:
        await lock.release()
