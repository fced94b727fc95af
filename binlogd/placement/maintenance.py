"""How this etcd is: etcd's services Maintenance and Auth as far as they tell, and gRPC's health.

Source: go.etcd.io/etcd etcdserver/api/v3rpc/maintenance.go, auth.go; grpc health/server.go.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping

from grpclib.const import Handler

from binlogd.errors import EtcdRefused
from binlogd.grpc.methods import OpenStreams
from binlogd.placement.calls import server_streaming, unary
from binlogd.upstream.keyspace.store import KeyspaceStore
from binlogd.wire.generated.etcdserverpb import (
    AlarmMember,
    AlarmRequest,
    AlarmRequestAlarmAction,
    AlarmResponse,
    AlarmType,
    AuthStatusRequest,
    AuthStatusResponse,
    StatusRequest,
    StatusResponse,
)
from binlogd.wire.generated.grpc.health.v1 import (
    HealthCheckRequest,
    HealthCheckResponse,
    HealthCheckResponseServingStatus,
)

ETCD_VERSION = "3.4.0"
"""Whose requests are understood."""


class MaintenanceService:
    """`etcdserverpb.Maintenance`: what it says of itself, and no care that it does not need."""

    def __init__(self, keyspace: KeyspaceStore) -> None:
        self._keyspace = keyspace

    def __mapping__(self) -> Mapping[str, Handler]:
        """The methods, for grpclib's server with a `BytesCodec`."""
        return {
            "/etcdserverpb.Maintenance/Status": unary(StatusRequest, self._status),
            "/etcdserverpb.Maintenance/Alarm": unary(AlarmRequest, self._alarm),
        }

    async def _status(self, _: StatusRequest) -> StatusResponse:
        figures = self._keyspace.statistics()
        header = self._keyspace.header()
        return StatusResponse(
            header=header,
            version=ETCD_VERSION,
            db_size=figures.history_bytes,
            db_size_in_use=figures.live_bytes,
            leader=header.member_id,
            raft_index=figures.revision,
            raft_term=header.raft_term,
            raft_applied_index=figures.revision,
            errors=["etcdserver: mvcc: database space exceeded"] if figures.is_full else [],
        )

    async def _alarm(self, request: AlarmRequest) -> AlarmResponse:
        """The one there is comes and goes with the room."""
        if request.action == AlarmRequestAlarmAction.ACTIVATE:
            raise EtcdRefused("UNIMPLEMENTED", "binlogd stands in for PD: no alarm is set by hand")
        answer = AlarmResponse(header=self._keyspace.header())
        if self._keyspace.statistics().is_full and request.alarm in (
            AlarmType.NONE,
            AlarmType.NOSPACE,
        ):
            full = AlarmType(AlarmType.NOSPACE)
            answer.alarms = [AlarmMember(member_id=self._keyspace.identity.member, alarm=full)]
        return answer


class AuthService:
    """`etcdserverpb.Auth`: nobody has to say who they are."""

    def __init__(self, keyspace: KeyspaceStore) -> None:
        self._keyspace = keyspace

    def __mapping__(self) -> Mapping[str, Handler]:
        """The methods, for grpclib's server with a `BytesCodec`."""
        return {
            "/etcdserverpb.Auth/AuthStatus": unary(AuthStatusRequest, self._status),
            "/etcdserverpb.Auth/Authenticate": unary(AuthStatusRequest, self._authenticate),
        }

    async def _status(self, _: AuthStatusRequest) -> AuthStatusResponse:
        return AuthStatusResponse(header=self._keyspace.header(), enabled=False, auth_revision=1)

    async def _authenticate(self, _: AuthStatusRequest) -> AuthStatusResponse:
        """Clients that were given a name and a password go on without when they hear this."""
        raise EtcdRefused("FAILED_PRECONDITION", "etcdserver: authentication is not enabled")


class HealthService:
    """`grpc.health.v1.Health`: a process that answers serves."""

    def __init__(self, streams: OpenStreams) -> None:
        self._streams = streams

    def __mapping__(self) -> Mapping[str, Handler]:
        """The methods, for grpclib's server with a `BytesCodec`."""
        return {
            "/grpc.health.v1.Health/Check": unary(HealthCheckRequest, self._check),
            "/grpc.health.v1.Health/Watch": server_streaming(
                HealthCheckRequest, self._watch, self._streams
            ),
        }

    async def _check(self, _: HealthCheckRequest) -> HealthCheckResponse:
        serving = HealthCheckResponseServingStatus(HealthCheckResponseServingStatus.SERVING)
        return HealthCheckResponse(status=serving)

    async def _watch(
        self, request: HealthCheckRequest
    ) -> AsyncGenerator[HealthCheckResponse, None]:
        yield await self._check(request)
        await asyncio.Event().wait()  # until one of the two sides closes
