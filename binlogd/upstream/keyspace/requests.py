"""What etcd answers to a request, decided on a keyspace: reads, writes and transactions.

What TiDB, Pump, Drainer, binlogctl and this product ask of an etcd is answered as etcd does, in its
words; what they do not ask (the past, transactions within transactions, parts of a key that stay)
is UNIMPLEMENTED with the reason. All comparisons of a transaction are made on the state before it.

Source: go.etcd.io/etcd etcdserver/apply.go, etcdserver/api/v3rpc/key.go.
"""

from __future__ import annotations

import operator
from collections.abc import Container, Sequence

from binlogd.errors import EtcdRefused
from binlogd.upstream.keyspace.versions import EVERYTHING, Draft, KeyVersion, is_within
from binlogd.wire.generated import etcdserverpb as etcd

OPS_MAX = 128
STANDS_IN = "binlogd stands in for PD"

_NOT_HERE = "its etcd keeps a registry; of a range, a put and a transaction it does not know "

_SORTED_BY = {
    etcd.RangeRequestSortTarget.VERSION: "version",
    etcd.RangeRequestSortTarget.CREATE: "create_revision",
    etcd.RangeRequestSortTarget.MOD: "mod_revision",
    etcd.RangeRequestSortTarget.VALUE: "value",
}
_COMPARED = {
    etcd.CompareCompareTarget.CREATE: "create_revision",
    etcd.CompareCompareTarget.MOD: "mod_revision",
    etcd.CompareCompareTarget.VALUE: "value",
    etcd.CompareCompareTarget.LEASE: "lease",
}
_HOLDS = {
    etcd.CompareCompareResult.EQUAL: operator.eq,
    etcd.CompareCompareResult.GREATER: operator.gt,
    etcd.CompareCompareResult.LESS: operator.lt,
    etcd.CompareCompareResult.NOT_EQUAL: operator.ne,
}
_ABSENT = KeyVersion(key=b"", mod_revision=0)


def key_value(version: KeyVersion) -> etcd.KeyValue:
    """A version as it goes over the wire; of a deletion etcd says the key and the revision."""
    return etcd.KeyValue(
        key=version.key,
        create_revision=version.create_revision,
        mod_revision=version.mod_revision,
        version=version.version,
        value=version.value,
        lease=version.lease,
    )


def event(change: KeyVersion) -> etcd.Event:
    """A change as a watch tells it."""
    kind = etcd.EventEventType.PUT if change.is_live else etcd.EventEventType.DELETE
    return etcd.Event(type=etcd.EventEventType(kind), kv=key_value(change))


def is_empty_range(start: bytes, end: bytes) -> bool:
    """Whether a watch of it could never see anything."""
    return bool(end) and end != EVERYTHING and end <= start


def check_txn(request: etcd.TxnRequest) -> None:
    """What can be said of a transaction without a look at the keys. Raises EtcdRefused."""
    if max(len(request.compare), len(request.success), len(request.failure)) > OPS_MAX:
        raise EtcdRefused("INVALID_ARGUMENT", "etcdserver: too many operations in txn request")
    for compare in request.compare:
        _require_key(compare.key)
    for ops in (request.success, request.failure):
        for op in ops:
            _require_key(_key_of(op))
        _check_once(ops)


def _key_of(op: etcd.RequestOp) -> bytes:
    if op.request_txn is not None:
        raise _not_here("a transaction within a transaction")
    found = op.request_range or op.request_put or op.request_delete_range
    return found.key if found is not None else b""


def _check_once(ops: Sequence[etcd.RequestOp]) -> None:
    """No key may change twice."""
    deleted = [each for op in ops if (each := op.request_delete_range) is not None]
    put: set[bytes] = set()
    for key in [op.request_put.key for op in ops if op.request_put is not None]:
        if key in put or any(is_within(key, each.key, each.range_end) for each in deleted):
            raise EtcdRefused("INVALID_ARGUMENT", "etcdserver: duplicate key given in txn request")
        put.add(key)


def _require_key(key: bytes) -> None:
    if not key:
        raise EtcdRefused("INVALID_ARGUMENT", "etcdserver: key is not provided")


def _not_here(what: str) -> EtcdRefused:
    return EtcdRefused("UNIMPLEMENTED", f"{STANDS_IN}: {_NOT_HERE}{what}")


class Deciding:
    """Requests on one draft of a keyspace, whose leases are known. Methods raise EtcdRefused; the
    draft is of no use then."""

    def __init__(self, draft: Draft, leases: Container[int]) -> None:
        self.draft, self._leases = draft, leases
        self._before = draft.revision

    def range(self, request: etcd.RangeRequest) -> etcd.RangeResponse:
        """Reads what is there now."""
        _require_key(request.key)
        if request.revision not in (0, self._before):
            raise _not_here(f"the revision {request.revision}, but the newest, {self._before}")
        if request.min_mod_revision or request.max_mod_revision or request.min_create_revision:
            raise _not_here("bounds of revisions, but the greatest of creation")
        found = self.draft.range(request.key, request.range_end)
        return ranged(request, found, self.draft.revision)

    def put(self, request: etcd.PutRequest) -> etcd.PutResponse:
        """Sets a key."""
        _require_key(request.key)
        if request.ignore_value or request.ignore_lease:
            raise _not_here("a value or a lease that stays")
        if request.lease and request.lease not in self._leases:
            raise EtcdRefused("NOT_FOUND", "etcdserver: requested lease not found")
        before = self.draft.put(request.key, request.value, request.lease)
        return etcd.PutResponse(
            header=self._header(),
            prev_kv=key_value(before) if before is not None and request.prev_kv else None,
        )

    def delete(self, request: etcd.DeleteRangeRequest) -> etcd.DeleteRangeResponse:
        """Removes a range."""
        _require_key(request.key)
        gone = self.draft.delete(request.key, request.range_end)
        return etcd.DeleteRangeResponse(
            header=self._header(),
            deleted=len(gone),
            prev_kvs=[key_value(each) for each in gone] if request.prev_kv else [],
        )

    def txn(self, request: etcd.TxnRequest) -> etcd.TxnResponse:
        """Compares, and then reads and writes."""
        succeeded = all(self._is_met(compare) for compare in request.compare)
        answers = [self._one(op) for op in (request.success if succeeded else request.failure)]
        return etcd.TxnResponse(header=self._header(), succeeded=succeeded, responses=answers)

    def _one(self, op: etcd.RequestOp) -> etcd.ResponseOp:
        if op.request_range is not None:
            return etcd.ResponseOp(response_range=self.range(op.request_range))
        if op.request_put is not None:
            return etcd.ResponseOp(response_put=self.put(op.request_put))
        assert op.request_delete_range is not None, "checked by check_txn"
        return etcd.ResponseOp(response_delete_range=self.delete(op.request_delete_range))

    def _is_met(self, compare: etcd.Compare) -> bool:
        found = self.draft.range(compare.key, compare.range_end)
        if not found:
            # no value can be said to equal or differ from one that is not there
            if compare.target == etcd.CompareCompareTarget.VALUE:
                return False
            found = [_ABSENT]
        name = _COMPARED.get(compare.target, "version")
        holds = _HOLDS.get(compare.result, operator.eq)
        given = getattr(compare, name)
        values = [getattr(version, name) for version in found]
        return all(holds(value, given or type(value)()) for value in values)

    def _header(self) -> etcd.ResponseHeader:
        return etcd.ResponseHeader(revision=self.draft.revision)


def ranged(
    request: etcd.RangeRequest, found: list[KeyVersion], revision: int
) -> etcd.RangeResponse:
    """The answer to a read, of all that its range has."""
    answer = etcd.RangeResponse(header=etcd.ResponseHeader(revision=revision), count=len(found))
    if request.count_only:
        return answer
    is_sorted = request.sort_order != etcd.RangeRequestSortOrder.NONE
    limit, newest = max(request.limit, 0), request.max_create_revision
    if limit and not is_sorted and not newest:
        found = found[: limit + 1]  # what is not fetched is not sorted either
    if newest:
        found = [version for version in found if version.create_revision <= newest]
    name = _SORTED_BY.get(request.sort_target, "key")
    if is_sorted or name != "key":
        is_reverse = request.sort_order == etcd.RangeRequestSortOrder.DESCEND
        found.sort(key=operator.attrgetter(name), reverse=is_reverse)
    answer.more = bool(limit) and len(found) > limit
    answer.kvs = [key_value(version) for version in (found[:limit] if limit else found)]
    if request.keys_only:
        for each in answer.kvs:
            each.value = b""
    return answer
