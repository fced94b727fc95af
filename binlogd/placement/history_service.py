"""`tikvpb.Tikv`, as far as a Go Drainer asks it: the history of DDL jobs, under TiDB's keys.

A Drainer reads the whole history when it starts, from its end to its beginning, and each job again
when the binlog of its DDL arrives. Nothing else is here: any other key is not found, the fate of a
transaction is refused with the reason, any other command gets the answer of a store that does not
know it.

Source: tidb-binlog drainer/util.go, loadHistoryDDLJobs; client-go internal/client/client_batch.go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from grpclib.const import Handler

from binlogd.errors import Corrupt, UpstreamUnavailable
from binlogd.grpc.messages import BytesStream, begin_answer
from binlogd.grpc.methods import OpenStreams, bidirectional, requests, send
from binlogd.placement.calls import MESSAGE_BYTES_MAX, unary
from binlogd.tidb.meta_keys import HISTORY, field_of, job_id_of, job_key
from binlogd.upstream.history import SchemaHistory
from binlogd.upstream.store import UpstreamStore
from binlogd.wire.generated import errorpb, kvrpcpb, tikvpb
from binlogd.wire.generated.grpc.health.v1 import HealthCheckRequest, HealthCheckResponse
from binlogd.wire.generated.grpc.health.v1 import HealthCheckResponseServingStatus as ServingStatus

_NO_ROWS = (
    "binlogd stands in for TiKV and keeps no rows: what became of a transaction cannot be told here"
)


class HistoryService:
    """The DDL history of this node as keys of TiKV."""

    def __init__(self, history: SchemaHistory, store: UpstreamStore, streams: OpenStreams) -> None:
        self._history, self._store, self._streams = history, store, streams

    def __mapping__(self) -> Mapping[str, Handler]:
        """The methods, for grpclib's server with a `BytesCodec`."""
        return {
            "/tikvpb.Tikv/KvGet": unary(kvrpcpb.GetRequest, self._get),
            "/tikvpb.Tikv/KvScan": unary(kvrpcpb.ScanRequest, self._scan),
            "/tikvpb.Tikv/MvccGetByKey": unary(kvrpcpb.MvccGetByKeyRequest, self._versions),
            "/tikvpb.Tikv/KvCheckTxnStatus": unary(kvrpcpb.CheckTxnStatusRequest, self._fate),
            "/tikvpb.Tikv/GetStoreSafeTS": unary(kvrpcpb.StoreSafeTsRequest, self._safe_ts),
            "/tikvpb.Tikv/BatchCommands": bidirectional(self._batches),
            "/grpc.health.v1.Health/Check": unary(HealthCheckRequest, self._health),
        }

    async def _batches(self, stream: BytesStream) -> None:
        async with self._streams.until_closing():
            await begin_answer(stream)
            async for batch in requests(stream, tikvpb.BatchCommandsRequest, MESSAGE_BYTES_MAX):
                answers = [await self._one(each) for each in batch.requests]
                await send(
                    stream,
                    tikvpb.BatchCommandsResponse(responses=answers, request_ids=batch.request_ids),
                )

    async def _one(
        self, request: tikvpb.BatchCommandsRequestRequest
    ) -> tikvpb.BatchCommandsResponseResponse:
        """An answer without a kind is to Go's client a command that is not known."""
        if request.get is not None:
            return tikvpb.BatchCommandsResponseResponse(get=await self._get(request.get))
        if request.scan is not None:
            return tikvpb.BatchCommandsResponseResponse(scan=await self._scan(request.scan))
        if request.check_txn_status is not None:
            fate = await self._fate(request.check_txn_status)
            return tikvpb.BatchCommandsResponseResponse(check_txn_status=fate)
        if request.empty is not None:
            empty = tikvpb.BatchCommandsEmptyResponse(test_id=request.empty.test_id)
            return tikvpb.BatchCommandsResponseResponse(empty=empty)
        return tikvpb.BatchCommandsResponseResponse()

    async def _versions(self, _: kvrpcpb.MvccGetByKeyRequest) -> kvrpcpb.MvccGetByKeyResponse:
        """A Pump hears an error, and goes on waiting for the outcome."""
        return kvrpcpb.MvccGetByKeyResponse(error=_NO_ROWS)

    async def _fate(self, _: kvrpcpb.CheckTxnStatusRequest) -> kvrpcpb.CheckTxnStatusResponse:
        """Nothing that could be taken for a rollback, and at once: a client would go on asking a
        store that does not know the question for twenty seconds."""
        return kvrpcpb.CheckTxnStatusResponse(error=kvrpcpb.KeyError(abort=_NO_ROWS))

    async def _health(self, _: HealthCheckRequest) -> HealthCheckResponse:
        """A process that answers serves; asked by clients of a TiKV and of a PD alike."""
        return HealthCheckResponse(status=ServingStatus(ServingStatus.SERVING))

    async def _safe_ts(self, _: kvrpcpb.StoreSafeTsRequest) -> kvrpcpb.StoreSafeTsResponse:
        """Up to where stale reads are possible: nowhere."""
        return kvrpcpb.StoreSafeTsResponse()

    async def _get(self, request: kvrpcpb.GetRequest) -> kvrpcpb.GetResponse:
        job_id = _job_id(request.key)
        if job_id is None:
            return kvrpcpb.GetResponse(not_found=True)
        raw = await self._store.job(job_id)
        if raw is None:
            try:
                await self._history.index()  # it may have come since
            except UpstreamUnavailable as error:
                return kvrpcpb.GetResponse(region_error=_busy(error))
            raw = await self._store.job(job_id)
        return kvrpcpb.GetResponse(value=raw or b"", not_found=raw is None)

    async def _scan(self, request: kvrpcpb.ScanRequest) -> kvrpcpb.ScanResponse:
        try:
            index = await self._history.index()
        except UpstreamUnavailable as error:
            return kvrpcpb.ScanResponse(region_error=_busy(error))
        ids = sorted(entry.id for entry in index.in_version_order())
        # fewer than were asked for would say that there are no more
        wanted = _within(ids, request)[: request.limit]
        raws = [b""] * len(wanted) if request.key_only else await self._store.read_jobs(wanted)
        pairs = [
            kvrpcpb.KvPair(key=job_key(job_id), value=raw)
            for job_id, raw in zip(wanted, raws, strict=True)
        ]
        return kvrpcpb.ScanResponse(pairs=pairs)


def _within(ids: Sequence[int], request: kvrpcpb.ScanRequest) -> list[int]:
    """The jobs of a scan, in its direction: a backward one begins below `start_key`."""
    low, high = request.start_key, request.end_key
    if request.reverse:
        low, high = high, low
    found = [
        job_id for job_id in ids if (key := job_key(job_id)) >= low and (not high or key < high)
    ]
    return found[::-1] if request.reverse else found


def _job_id(key: bytes) -> int | None:
    try:
        name, field = field_of(key)
        return job_id_of(field) if name == HISTORY else None
    except Corrupt:
        return None


def _busy(error: UpstreamUnavailable) -> errorpb.Error:
    """The client waits, and asks again."""
    return errorpb.Error(message=str(error), server_is_busy=errorpb.ServerIsBusy(reason=str(error)))
