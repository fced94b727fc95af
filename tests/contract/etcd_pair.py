"""Random requests for two etcds, and their answers in words that both must say alike."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from binlogd.errors import EtcdRefused
from binlogd.upstream.etcd.client import EtcdClient
from binlogd.upstream.keyspace.store import KeyspaceStore
from binlogd.wire.generated.etcdserverpb import (
    Compare,
    CompareCompareResult,
    CompareCompareTarget,
    DeleteRangeRequest,
    KeyValue,
    PutRequest,
    RangeRequest,
    RangeRequestSortOrder,
    RangeRequestSortTarget,
    RangeResponse,
    RequestOp,
    TxnRequest,
    TxnResponse,
)

NAMES = (b"a", b"ab", b"b", b"b\x00", b"c", b"d\xff")
ENDS = (b"", b"b", b"c", b"d", b"a", b"e")


@dataclass(frozen=True, slots=True)
class Place:
    """One of the two: where its keys are, and which revision counts as zero there."""

    client: EtcdClient
    prefix: bytes
    base: int
    leases: dict[int, int]
    keyspace: KeyspaceStore | None = None

    def key(self, name: bytes) -> bytes:
        return self.prefix + name

    def end(self, name: bytes) -> bytes:
        return self.prefix + name if name else b""

    def revision(self, relative: int) -> int:
        """Of a request; 0 is now in both places."""
        return self.base + relative if relative else 0


# --- requests, with names in the place of keys and revisions counted from the base ----------------

keys = st.sampled_from(NAMES)
ends = st.sampled_from(ENDS)
values = st.sampled_from([b"", b"1", b"2", b"\x00\xff", b"long" * 20])
lease_names = st.sampled_from([0, 0, 0, 1, 2, 9])  # 9 is never granted

ranges = st.builds(
    RangeRequest,
    key=keys,
    range_end=ends,
    limit=st.sampled_from([0, 0, 1, 2]),
    sort_order=st.sampled_from(list(RangeRequestSortOrder)),
    # ties in the others are ordered by chance in the original
    sort_target=st.sampled_from([RangeRequestSortTarget.KEY, RangeRequestSortTarget.MOD]),
    keys_only=st.booleans(),
    count_only=st.sampled_from([False, False, False, True]),
    max_create_revision=st.sampled_from([0, 0, 0, 3]),
)
puts = st.builds(
    PutRequest,
    key=keys,
    value=values,
    lease=lease_names,
    prev_kv=st.booleans(),
)
deletes = st.builds(DeleteRangeRequest, key=keys, range_end=ends, prev_kv=st.booleans())


@st.composite
def compares(draw: st.DrawFn) -> Compare:
    target = draw(st.sampled_from(list(CompareCompareTarget)))
    compare = Compare(
        result=draw(st.sampled_from(list(CompareCompareResult))),
        target=target,
        key=draw(keys),
        range_end=draw(st.sampled_from([b"", b"", b"c", b"e"])),
    )
    match target:
        case CompareCompareTarget.VALUE:
            compare.value = draw(values)
        case CompareCompareTarget.VERSION:
            compare.version = draw(st.integers(0, 3))
        case CompareCompareTarget.CREATE:
            compare.create_revision = draw(st.integers(0, 4))
        case CompareCompareTarget.MOD:
            compare.mod_revision = draw(st.integers(0, 6))
        case _:
            compare.lease = draw(st.sampled_from([0, 1, 2]))
    return compare


_ops = st.lists(
    st.one_of(
        st.builds(RequestOp, request_range=ranges),
        st.builds(RequestOp, request_put=puts),
        st.builds(RequestOp, request_delete_range=deletes),
    ),
    max_size=3,
)
txns = st.builds(TxnRequest, compare=st.lists(compares(), max_size=2), success=_ops, failure=_ops)
requests = st.one_of(puts, puts, ranges, deletes, txns)
Request = RangeRequest | PutRequest | DeleteRangeRequest | TxnRequest


async def said(place: Place, request: Request) -> Any:
    """What a place says to a request."""
    try:
        match placed(place, request):
            case RangeRequest() as ranging:
                return _range(place, await place.client.range(ranging))
            case PutRequest() as putting:
                answer = await place.client.put(putting)
                assert answer.header is not None
                return _ts(place, answer.header.revision), _kv(place, answer.prev_kv)
            case DeleteRangeRequest() as deleting:
                gone = await place.client.delete_range(deleting)
                assert gone.header is not None
                revision = _ts(place, gone.header.revision)
                return revision, gone.deleted, [_kv(place, each) for each in gone.prev_kvs]
            case TxnRequest() as txn:
                return _txn(place, await place.client.txn(txn))
    except EtcdRefused as error:
        return error.status, str(error)


def placed(place: Place, request: Any) -> Any:
    """The request as this place must be asked."""
    match request:
        case RangeRequest():
            return replace(
                request,
                key=place.key(request.key),
                range_end=place.end(request.range_end),
                max_create_revision=place.revision(request.max_create_revision),
            )
        case PutRequest():
            key, lease = place.key(request.key), place.leases.get(request.lease, request.lease)
            return replace(request, key=key, lease=lease)
        case DeleteRangeRequest():
            key, end = place.key(request.key), place.end(request.range_end)
            return replace(request, key=key, range_end=end)
        case Compare():
            return _placed_compare(place, request)
        case RequestOp():
            return RequestOp(
                request_range=placed(place, request.request_range),
                request_put=placed(place, request.request_put),
                request_delete_range=placed(place, request.request_delete_range),
            )
        case TxnRequest():
            return TxnRequest(
                compare=[placed(place, each) for each in request.compare],
                success=[placed(place, each) for each in request.success],
                failure=[placed(place, each) for each in request.failure],
            )
        case _:
            return None


def _placed_compare(place: Place, request: Compare) -> Compare:
    compare = replace(request, key=place.key(request.key), range_end=place.end(request.range_end))
    if request.mod_revision is not None:
        compare.mod_revision = place.revision(request.mod_revision)
    if request.create_revision is not None:
        compare.create_revision = place.revision(request.create_revision)
    if request.lease is not None:
        compare.lease = place.leases.get(request.lease, request.lease)
    return compare


# --- answers --------------------------------------------------------------------------------------


def _ts(place: Place, revision: int) -> int:
    return revision - place.base if revision else 0


def _kv(place: Place, found: KeyValue | None) -> Any:
    if found is None:
        return None
    granted = {number: name for name, number in place.leases.items()}
    return (
        found.key.removeprefix(place.prefix),
        found.value,
        found.version,
        _ts(place, found.create_revision),
        _ts(place, found.mod_revision),
        granted.get(found.lease, found.lease),
    )


def _range(place: Place, answer: RangeResponse) -> Any:
    assert answer.header is not None
    found = [_kv(place, each) for each in answer.kvs]
    return _ts(place, answer.header.revision), answer.count, answer.more, found


def _txn(place: Place, answer: TxnResponse) -> Any:
    assert answer.header is not None
    parts: list[Any] = []
    for each in answer.responses:
        if each.response_range is not None:
            parts.append(_range(place, each.response_range))
        elif each.response_put is not None:
            assert each.response_put.header is not None
            revision = _ts(place, each.response_put.header.revision)
            parts.append((revision, _kv(place, each.response_put.prev_kv)))
        elif each.response_delete_range is not None:
            gone = each.response_delete_range
            assert gone.header is not None
            revision = _ts(place, gone.header.revision)
            parts.append((revision, gone.deleted, [_kv(place, kv) for kv in gone.prev_kvs]))
    return _ts(place, answer.header.revision), answer.succeeded, parts


async def observed(
    place: Place, key: bytes, end: bytes, since: int, until: int
) -> list[tuple[str, Any]]:
    """What a watch tells from a revision on, up to one that must come."""
    told: list[tuple[str, Any]] = []
    watch = place.client.watch(place.key(key), place.end(end), since)
    async for events in watch:
        for each in events:
            assert each.kv is not None
            told.append((each.type.name or "", _kv(place, each.kv)))
            if each.kv.mod_revision >= until:
                await watch.aclose()
                return told
    return told
