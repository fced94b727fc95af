"""Pumps and Drainers in an etcd, under the original's keys and in its JSON: PD's, or our own.

An entry stays until somebody says otherwise, as in the original, because whoever vanishes from the
registry must still be waited for: a Drainer that starts later has to know of every Pump that may
hold binlogs. What goes by itself is the claim to be alive: a second key, bound to a lease that the
heartbeats keep. An entry that says `isAlive` belongs to such a claim; when that has gone and the
node said that it was online, a Pump's entry is set to `paused`: writers pass it over, and everybody
else waits for it. Entries of the original say `isAlive` false, and are left alone.

    /tidb-binlog/v1/pumps/<id>, /tidb-binlog/v1/drainers/<id>       entries
    /tidb-binlog/v1/binlogd/alive/pumps/<id>, .../drainers/<id>     claims

Source: tidb-binlog pkg/node/registry.go, pkg/etcd/etcd.go. Its Update is no comparison with what
was read, so the last writer wins; so it is here.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import replace
from typing import Protocol

import structlog

from binlogd.errors import ConfigError, EtcdRefused, Overtaken, UpstreamUnavailable
from binlogd.ports import NodeStatus
from binlogd.upstream.entry import PUMP, ROOT, BadEntry, entry_json, node_key, node_of, span
from binlogd.wire.generated import etcdserverpb as etcd

log = structlog.get_logger(__name__)

ALIVE_ROOT = f"{ROOT}/binlogd/alive"
LEASE_S = 10
"""Five heartbeats."""
ONLINE, PAUSED = "online", "paused"


class KeyValues(Protocol):
    """An etcd: one that is reached by gRPC, or the keyspace of this process. Methods raise
    EtcdRefused, UpstreamUnavailable."""

    async def range(self, request: etcd.RangeRequest) -> etcd.RangeResponse:
        """Reads."""

    async def txn(self, request: etcd.TxnRequest) -> etcd.TxnResponse:
        """Compares, and then reads and writes, all in one moment."""

    async def grant(self, number: int, ttl_s: int) -> tuple[int, int]:
        """Begins a lease; its number and seconds to live."""

    async def keep_alive(self, number: int) -> int:
        """Its seconds to live from now on; 0 if it is gone."""

    async def revoke(self, number: int) -> None:
        """Ends a lease, and removes what was bound to it."""

    def watch(
        self, key: bytes, range_end: bytes, since: int
    ) -> AsyncGenerator[Sequence[etcd.Event], None]:
        """The changes of a range from a revision on. Raises Overtaken."""


class NodeRegistry:
    """`Registry`: the nodes of one cluster."""

    def __init__(self, etcd: KeyValues) -> None:
        self._etcd = etcd
        self._lease = 0

    async def register(self, node: NodeStatus) -> None:
        """Adds or updates a node. Raises ConfigError when nobody could list it."""
        await self._update(node, [])

    async def keep(self, nodes: Sequence[NodeStatus]) -> None:
        """As `register`, for the nodes of this process, which claim to be alive by that."""
        lease = await self._kept_lease()
        for node in nodes:
            claim = etcd.PutRequest(key=_alive_key(node.kind, node.node_id), lease=lease)
            alive = replace(node, is_alive=True)
            await self._update(alive, [etcd.RequestOp(request_put=claim)])

    async def leave(self, nodes: Sequence[NodeStatus]) -> None:
        """The last words of this process: its entries stay, its claims end."""
        for node in nodes:
            claim = etcd.DeleteRangeRequest(key=_alive_key(node.kind, node.node_id))
            await self._update(node, [etcd.RequestOp(request_delete_range=claim)])
        lease, self._lease = self._lease, 0
        if lease:
            try:
                await self._etcd.revoke(lease)
            except EtcdRefused as error:
                log.info("lease_gone", cause=str(error))

    async def nodes(self, kind: str) -> list[NodeStatus]:
        """All of a kind, by id. One entry that makes no sense spoils the list, as in the original:
        whom it is about nobody knows, and to leave somebody out would be worse."""
        return [node for node, _ in await self._entries(kind)]

    async def node(self, kind: str, node_id: str) -> NodeStatus | None:
        """One node; None if it was never here."""
        with _refusals_as_unavailable():
            found = await self._etcd.range(etcd.RangeRequest(key=node_key(kind, node_id)))
        return next((_node(kind, each) for each in found.kvs), None)

    async def watch(self, kind: str) -> AsyncGenerator[Sequence[NodeStatus], None]:
        """All of a kind now, and all of them again whenever something of them has changed."""
        while True:  # once more when the registry has forgotten what happened meanwhile
            prefix, end = span(node_key(kind, ""))
            try:
                with _refusals_as_unavailable():
                    found = await self._etcd.range(etcd.RangeRequest(key=prefix, range_end=end))
                    assert found.header is not None, "etcd always says it"
                    nodes = {each.key: _node(kind, each) for each in found.kvs}
                    yield list(nodes.values())
                    changes = self._etcd.watch(prefix, end, found.header.revision + 1)
                    async with aclosing(changes):
                        async for events in changes:
                            for event in events:
                                _take_in(nodes, kind, event)
                            yield [nodes[key] for key in sorted(nodes)]
            except Overtaken as error:
                log.info("registry_read_anew", cause=str(error))

    async def pause_the_vanished(self) -> Sequence[NodeStatus]:
        """Sets Pumps to paused that said they were online and alive, and whose claim has gone;
        returns them. One that comes back says so itself, and wins."""
        paused = []
        for node, revision in await self._entries(PUMP):
            if node.is_alive is not False or node.state != ONLINE:
                continue
            changed = replace(node, state=PAUSED)
            if await self._replace(changed, revision):
                log.warning("pump_vanished", pump=node.node_id, host=node.host, consequence=PAUSED)
                paused.append(changed)
        return paused

    # --- reading ---------------------------------------------------------------------------

    async def _entries(self, kind: str) -> list[tuple[NodeStatus, int]]:
        """With the revision of each entry."""
        spans = span(node_key(kind, "")), span(_alive_key(kind, ""))
        request = etcd.TxnRequest(
            success=[
                etcd.RequestOp(request_range=etcd.RangeRequest(key=start, range_end=end))
                for start, end in spans
            ]
        )
        with _refusals_as_unavailable():
            answer = await self._etcd.txn(request)
        found, claims = (each.response_range for each in answer.responses)
        assert found is not None, "each request has its answer"
        assert claims is not None, "each request has its answer"
        alive = {each.key for each in claims.kvs}
        entries = []
        for each in found.kvs:
            node = _node(kind, each)
            if node.is_alive is not None:
                node = replace(node, is_alive=_alive_key(kind, node.node_id) in alive)
            entries.append((node, each.mod_revision))
        return entries

    # --- writing ---------------------------------------------------------------------------

    async def _update(self, node: NodeStatus, beside: Sequence[etcd.RequestOp]) -> None:
        if "/" in node.node_id or not node.node_id:
            raise ConfigError(f'node-id "{node.node_id}": must not be empty nor contain a slash')
        key = node_key(node.kind, node.node_id)
        ops = [
            etcd.RequestOp(request_put=etcd.PutRequest(key=key, value=entry_json(node))),
            *beside,
        ]
        exists = _revision_of(key, etcd.CompareCompareResult.GREATER, 0)
        request = etcd.TxnRequest(compare=[exists], success=ops, failure=ops)
        with _refusals_as_unavailable():
            try:
                answer = await self._etcd.txn(request)
            except EtcdRefused:
                self._lease = 0  # it may have ended; the next heartbeat begins another
                raise
        if not answer.succeeded:
            log.info("node_registered", kind=node.kind, node_id=node.node_id)

    async def _replace(self, node: NodeStatus, revision: int) -> bool:
        """False if the entry has changed since."""
        key = node_key(node.kind, node.node_id)
        put = etcd.RequestOp(request_put=etcd.PutRequest(key=key, value=entry_json(node)))
        is_same = _revision_of(key, etcd.CompareCompareResult.EQUAL, revision)
        with _refusals_as_unavailable():
            answer = await self._etcd.txn(etcd.TxnRequest(compare=[is_same], success=[put]))
        return answer.succeeded

    async def _kept_lease(self) -> int:
        with _refusals_as_unavailable():
            if not self._lease or not await self._etcd.keep_alive(self._lease):
                self._lease, _ = await self._etcd.grant(0, LEASE_S)
        return self._lease


def _revision_of(key: bytes, result: int, revision: int) -> etcd.Compare:
    return etcd.Compare(
        result=etcd.CompareCompareResult(result),
        target=etcd.CompareCompareTarget(etcd.CompareCompareTarget.MOD),
        key=key,
        mod_revision=revision,
    )


def _alive_key(kind: str, node_id: str) -> bytes:
    return f"{ALIVE_ROOT}/{kind}/{node_id}".encode()


def _node(kind: str, found: etcd.KeyValue) -> NodeStatus:
    try:
        return node_of(kind, found.value)
    except BadEntry as error:
        node_id = found.key.decode(errors="replace").rpartition("/")[2]
        value = found.value.decode(errors="replace")
        raise UpstreamUnavailable(
            f"error unmarshal NodeStatus with nodeID({node_id}), node value({value}): {error};"
            f" put its JSON right in the registry, or delete the key"
            f" {found.key.decode(errors='replace')}"
        ) from error


def _take_in(nodes: dict[bytes, NodeStatus], kind: str, event: etcd.Event) -> None:
    assert event.kv is not None, "etcd always says it"
    if event.type == etcd.EventEventType.DELETE:
        nodes.pop(event.kv.key, None)
    else:
        nodes[event.kv.key] = _node(kind, event.kv)


@contextmanager
def _refusals_as_unavailable() -> Iterator[None]:
    """Turns what etcd refuses into UpstreamUnavailable."""
    try:
        yield
    except EtcdRefused as error:
        raise UpstreamUnavailable(f"the registry refuses: {error}") from error
