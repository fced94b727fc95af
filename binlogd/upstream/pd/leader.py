"""The way to the leader of a PD: asked of any member, kept until it fails.

Invariant. A cluster id that is known is never exchanged for another one: a PD of another cluster is
an error, whatever else it says.
The leader's own address is taken where it can be reached. Where it cannot (it is the name of a
container, say), the member that answered passes requests on, as it does for the original's client.
Source: PD client/base_client.go, updateMember; server/grpc_service.go, getForwardedHost.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog
from grpclib.exceptions import GRPCError

from binlogd.errors import UpstreamUnavailable
from binlogd.grpc import channel as calls
from binlogd.grpc.channel import PlainChannel, unary
from binlogd.grpc.methods import understood
from binlogd.host.tls import ClientTls
from binlogd.settings.quantities import shown_address
from binlogd.upstream.pd.members import Address, Members, members_of, url_of
from binlogd.wire.generated import pdpb

log = structlog.get_logger(__name__)

FORWARDED_HOST = "pd-forwarded-host"
NO_ANSWER = (GRPCError, *calls.NO_ANSWER)
"""A member that refuses is asked again as one that is silent."""
_MEMBERS = "/pdpb.PD/GetMembers"


@dataclass(frozen=True, slots=True)
class PdLimits:
    """How long to wait, in seconds."""

    call_s: float = 3.0
    connect_s: float = 1.5
    question_s: float = 10.0
    pause_s: float = 0.05
    pause_s_max: float = 1.0
    look_again_s: float = 30.0
    tso_s: float = 3.0
    tso_call_s: float = 1.0
    slow_tso_s: float = 0.03
    """Source: PD client's "get timestamp too slow"."""
    tso_every_s: float = 10.0


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """A channel that reaches the leader, by itself or through another member."""

    leader: str
    address: Address
    channel: PlainChannel
    named_by: Address
    metadata: dict[str, str] = field(default_factory=dict)


class Leader:
    """Finds the leader, and finds it again."""

    def __init__(
        self, addresses: Sequence[Address], tls: ClientTls | None, limits: PdLimits
    ) -> None:
        self._given, self._tls, self._limits = tuple(addresses), tls, limits
        self._learnt: tuple[Address, ...] = ()
        self._channels: dict[Address, PlainChannel] = {}
        self._way: Way | None = None
        self._doubted: Address | None = None
        """Whoever named a leader that was none is asked last."""
        self._silent: set[Address] = set()
        """So are those that gave no answer when they were asked last: each costs `connect_s`."""
        self._finding = asyncio.Lock()
        self.cluster_id: int | None = None
        self.has_no_cluster = False
        """Whether `cluster_id` may become another: `PdClient.has_no_cluster`."""
        self.name = ""
        self.changes = 0

    @property
    def address(self) -> str:
        """Who answers now; empty when nobody is known to."""
        return shown_address(self._way.address) if self._way is not None else ""

    async def way(self) -> Way:
        """The one that is known, else it is found now. Raises UpstreamUnavailable."""
        async with self._finding:
            if self._way is None:
                self._way = await self._find()
            return self._way

    async def look_again(self) -> None:
        """Follows a leader that has moved although nothing has failed. Raises
        UpstreamUnavailable."""
        async with self._finding:
            found = await self._find()
            way = self._way
            if way is None or (found.leader, found.address) != (way.leader, way.address):
                self._way = found

    def forget(self, way: Way, error: BaseException) -> None:
        """It did not answer, or is not the leader: the next question looks for it anew."""
        if not isinstance(error, GRPCError):  # what hangs or is broken is dialled anew
            self._drop(way.address)
            self._silent.add(way.address)
        if self._way is way:
            self._way, self._doubted = None, way.named_by

    def close(self) -> None:
        """Lets go of all connections."""
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()
        self._way = None

    async def _find(self) -> Way:
        failures: list[str] = []
        known = dict.fromkeys((*self._given, *self._learnt))
        for address in sorted(
            known, key=lambda each: (each in self._silent, each == self._doubted)
        ):
            try:
                members = await self._ask(address)
                self._silent.discard(address)
                if not members.leader_addresses:
                    failures.append(
                        f"{shown_address(address)}: {members.trouble or 'no leader is elected'}"
                    )
                    continue
                self._check_cluster(members, address)
                way = await self._reach(members, address)
            except NO_ANSWER as error:
                self._drop(address)
                self._silent.add(address)
                failures.append(f"{shown_address(address)}: {reason(error)}")
            except UpstreamUnavailable as error:
                failures.append(str(error))
            else:
                self._note(members, way)
                return way
        raise UpstreamUnavailable(f"PD: {'; '.join(failures)}")

    async def _ask(self, address: Address) -> Members:
        async with asyncio.timeout(self._limits.connect_s):
            # nothing in it, as in the original's: this is who tells the cluster id
            raw = await unary(self._channel(address), _MEMBERS, bytes(pdpb.GetMembersRequest()))
        return members_of(understood(pdpb.GetMembersResponse(), raw))

    def _check_cluster(self, members: Members, address: Address) -> None:
        if not members.cluster_id:
            raise UpstreamUnavailable(f"{shown_address(address)}: tells no cluster id")
        if self.cluster_id is None or self.has_no_cluster:
            self.cluster_id, self.has_no_cluster = members.cluster_id, members.has_no_cluster
        elif not members.has_no_cluster and members.cluster_id != self.cluster_id:
            raise UpstreamUnavailable(
                f"{shown_address(address)}: belongs to cluster {members.cluster_id}, not to"
                f" {self.cluster_id}, whose binlogs these are; see upstream.pd-urls"
            )

    async def _reach(self, members: Members, asked: Address) -> Way:
        for address in members.leader_addresses:
            channel = self._channel(address)
            try:
                async with asyncio.timeout(self._limits.connect_s):
                    await channel.__connect__()
            except NO_ANSWER:
                self._drop(address)
            else:
                return Way(members.leader, address, channel, asked)
        url = url_of(members.leader_addresses[0], is_tls=self._tls is not None)
        return Way(members.leader, asked, self._channel(asked), asked, {FORWARDED_HOST: url})

    def _note(self, members: Members, way: Way) -> None:
        if self.name and members.leader != self.name:
            self.changes += 1
            log.info("pd_leader_changed", before=self.name, leader=members.leader)
        self.name = members.leader
        self._learnt = (way.address, *members.addresses)

    def _channel(self, address: Address) -> PlainChannel:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = PlainChannel(*address, self._tls)
        return channel

    def _drop(self, address: Address) -> None:
        channel = self._channels.pop(address, None)
        if channel is not None:
            channel.close()


def reason(error: BaseException) -> str:
    """Of a call that failed, for a person."""
    if isinstance(error, GRPCError):
        return f"{error.status.name}: {error.message}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, TimeoutError):
        return "no answer"
    return str(error) or type(error).__name__
