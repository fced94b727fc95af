"""What etcd answers to a request, decided on a keyspace: reads, writes and transactions.

All checks come before the first change, so a request that is refused has changed nothing. The texts
and the names of the statuses are etcd's. In a transaction the comparisons of all levels are made on
the state before it, as in the original.

Source: go.etcd.io/etcd etcdserver/apply.go, etcdserver/api/v3rpc/key.go.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from operator import attrgetter

from binlogd.errors import EtcdRefused
from binlogd.upstream.keyspace.versions import EVERYTHING, KeyVersion, Writing, is_within
from binlogd.wire.generated.etcdserverpb import (
    Compare,
    CompareCompareResult,
    CompareCompareTarget,
    DeleteRangeRequest,
    DeleteRangeResponse,
    Event,
    EventEventType,
    KeyValue,
    PutRequest,
    PutResponse,
    RangeRequest,
    RangeRequestSortOrder,
    RangeRequestSortTarget,
    RangeResponse,
    RequestOp,
    ResponseHeader,
    ResponseOp,
    TxnRequest,
    TxnResponse,
)

OPS_MAX = 128

_NO_KEY = "etcdserver: key is not provided"
_DUPLICATE = "etcdserver: duplicate key given in txn request"

_ATTRIBUTES = {
    RangeRequestSortTarget.KEY: attrgetter("key"),
    RangeRequestSortTarget.VERSION: attrgetter("version"),
    RangeRequestSortTarget.CREATE: attrgetter("create_revision"),
    RangeRequestSortTarget.MOD: attrgetter("mod_revision"),
    RangeRequestSortTarget.VALUE: attrgetter("value"),
}
_ABSENT = KeyVersion(key=b"", mod_revision=0)

_Span = tuple[bytes, bytes]


def key_value(version: KeyVersion) -> KeyValue:
    """A version as it goes over the wire; of a deletion etcd says the key and the revision."""
    return KeyValue(
        key=version.key,
        create_revision=version.create_revision,
        mod_revision=version.mod_revision,
        version=version.version,
        value=version.value,
        lease=version.lease,
    )


def event(change: KeyVersion, before: KeyVersion | None = None) -> Event:
    """A change as a watch tells it; `before` is for those who asked for it."""
    return Event(
        type=EventEventType(EventEventType.PUT if change.is_live else EventEventType.DELETE),
        kv=key_value(change),
        prev_kv=key_value(before) if before is not None else None,
    )


# --- checks that need no state -------------------------------------------------------------


def check_range(request: RangeRequest) -> None:
    """Raises EtcdRefused."""
    _require_key(request.key)


def check_put(request: PutRequest) -> None:
    """Raises EtcdRefused."""
    _require_key(request.key)
    if request.ignore_value and request.value:
        raise EtcdRefused("INVALID_ARGUMENT", "etcdserver: value is provided")
    if request.ignore_lease and request.lease:
        raise EtcdRefused("INVALID_ARGUMENT", "etcdserver: lease is provided")


def check_delete(request: DeleteRangeRequest) -> None:
    """Raises EtcdRefused."""
    _require_key(request.key)


def check_txn(request: TxnRequest) -> None:
    """Raises EtcdRefused."""
    _check_ops(request, OPS_MAX)
    _written_by(request.success)
    _written_by(request.failure)


def _require_key(key: bytes) -> None:
    if not key:
        raise EtcdRefused("INVALID_ARGUMENT", _NO_KEY)


def _check_ops(request: TxnRequest, ops_max: int) -> None:
    most = max(len(request.compare), len(request.success), len(request.failure))
    if most > ops_max:
        raise EtcdRefused("INVALID_ARGUMENT", "etcdserver: too many operations in txn request")
    for compare in request.compare:
        _require_key(compare.key)
    for op in (*request.success, *request.failure):
        if op.request_range is not None:
            check_range(op.request_range)
        elif op.request_put is not None:
            check_put(op.request_put)
        elif op.request_delete_range is not None:
            check_delete(op.request_delete_range)
        elif op.request_txn is not None:
            _check_ops(op.request_txn, ops_max - most)
        else:
            raise EtcdRefused("INVALID_ARGUMENT", _NO_KEY)


def _written_by(ops: Sequence[RequestOp]) -> tuple[set[bytes], list[_Span]]:
    """The keys that a branch may put, and the ranges that it may delete. Raises EtcdRefused when
    a key may change twice."""
    deleted: list[_Span] = [
        (each.key, each.range_end) for op in ops if (each := op.request_delete_range) is not None
    ]
    put: set[bytes] = set()

    def add(key: bytes, harmless: Container[bytes] = ()) -> None:
        is_known = key in put and key not in harmless
        if is_known or any(is_within(key, start, end) for start, end in deleted):
            raise EtcdRefused("INVALID_ARGUMENT", _DUPLICATE)
        put.add(key)

    for op in ops:
        if op.request_txn is None:
            continue
        then_put, then_deleted = _written_by(op.request_txn.success)
        else_put, else_deleted = _written_by(op.request_txn.failure)
        for key in then_put:
            add(key)
        for key in else_put:
            add(key, harmless=then_put)  # only one of the two comes to pass
        deleted += [*then_deleted, *else_deleted]
    for op in ops:
        if op.request_put is not None:
            add(op.request_put.key)
    return put, deleted


# --- deciding ------------------------------------------------------------------------------


class Deciding:
    """Requests on one write of a keyspace, whose leases and limits are known."""

    def __init__(
        self, writing: Writing, *, leases: Container[int], compacted: int, revision: int
    ) -> None:
        """`revision` is the newest that is durable."""
        self._writing = writing
        self._leases = leases
        self._compacted, self._revision = compacted, revision

    def range(self, request: RangeRequest) -> RangeResponse:
        """Raises EtcdRefused for a revision that is gone or not there yet."""
        self._check_revision(request.revision)
        found = self._writing.range(request.key, request.range_end, request.revision)
        return ranged(request, found, self._writing.revision)

    def put(self, request: PutRequest) -> PutResponse:
        """Raises EtcdRefused; the lease is looked at first, in a transaction the key is."""
        self._check_lease(request.lease)
        self._check_put(request)
        return self._put(request)

    def delete(self, request: DeleteRangeRequest) -> DeleteRangeResponse:
        """Removes a range."""
        gone = self._writing.delete(request.key, request.range_end)
        return DeleteRangeResponse(
            header=self._header(),
            deleted=len(gone),
            prev_kvs=[key_value(each) for each in gone] if request.prev_kv else [],
        )

    def txn(self, request: TxnRequest) -> TxnResponse:
        """Raises EtcdRefused; then nothing has changed."""
        path = self._path(request)
        self._check_path(request, path)
        answer = self._txn(request, iter(path).__next__)
        answer.header = self._header()
        return answer

    # --- one transaction -------------------------------------------------------------------

    def _path(self, request: TxnRequest) -> list[bool]:
        """Which branch is taken, of this transaction and those in it, outermost first."""
        is_met = all(self._is_met(compare) for compare in request.compare)
        path = [is_met]
        for op in request.success if is_met else request.failure:
            if op.request_txn is not None:
                path += self._path(op.request_txn)
        return path

    def _check_path(self, request: TxnRequest, path: Sequence[bool]) -> None:
        """All that would be put first, then all that would be read, as in the original."""
        ops = list(_chosen(request, iter(path).__next__))
        for op in ops:
            if op.request_put is not None:
                self._check_put(op.request_put)
        for op in ops:
            if op.request_range is not None:
                self._check_revision(op.request_range.revision)

    def _txn(self, request: TxnRequest, branch: Callable[[], bool]) -> TxnResponse:
        succeeded = branch()
        answers = []
        for op in request.success if succeeded else request.failure:
            if op.request_range is not None:
                answer = ResponseOp(response_range=self.range(op.request_range))
            elif op.request_put is not None:
                answer = ResponseOp(response_put=self._put(op.request_put))
            elif op.request_delete_range is not None:
                answer = ResponseOp(response_delete_range=self.delete(op.request_delete_range))
            else:
                assert op.request_txn is not None, "checked by check_txn"
                answer = ResponseOp(response_txn=self._txn(op.request_txn, branch))
            answers.append(answer)
        # one within another says no revision
        return TxnResponse(header=ResponseHeader(), succeeded=succeeded, responses=answers)

    def _is_met(self, compare: Compare) -> bool:
        found = self._writing.range(compare.key, compare.range_end)
        if not found:
            # no value can be said to equal or differ from one that is not there
            if compare.target == CompareCompareTarget.VALUE:
                return False
            found = [_ABSENT]
        return all(_compares(compare, version) for version in found)

    # --- parts -----------------------------------------------------------------------------

    def _put(self, request: PutRequest) -> PutResponse:
        before = next(iter(self._writing.range(request.key, b"")), None)
        value, lease = request.value, request.lease
        if before is not None and request.ignore_value:
            value = before.value
        if before is not None and request.ignore_lease:
            lease = before.lease
        self._writing.put(request.key, value, lease)
        return PutResponse(
            header=self._header(),
            prev_kv=key_value(before) if before is not None and request.prev_kv else None,
        )

    def _check_put(self, request: PutRequest) -> None:
        keeps = request.ignore_value or request.ignore_lease
        if keeps and not self._writing.range(request.key, b""):
            raise EtcdRefused("INVALID_ARGUMENT", "etcdserver: key not found")
        self._check_lease(request.lease)

    def _check_lease(self, lease: int) -> None:
        if lease and lease not in self._leases:
            raise EtcdRefused("NOT_FOUND", "etcdserver: requested lease not found")

    def _check_revision(self, revision: int) -> None:
        if revision > self._revision:
            raise EtcdRefused(
                "OUT_OF_RANGE", "etcdserver: mvcc: required revision is a future revision"
            )
        if 0 < revision < self._compacted:
            raise EtcdRefused(
                "OUT_OF_RANGE", "etcdserver: mvcc: required revision has been compacted"
            )

    def _header(self) -> ResponseHeader:
        return ResponseHeader(revision=self._writing.revision)


def _chosen(request: TxnRequest, branch: Callable[[], bool]) -> Iterator[RequestOp]:
    """The reads and writes that a transaction comes to."""
    for op in request.success if branch() else request.failure:
        if op.request_txn is not None:
            yield from _chosen(op.request_txn, branch)
        else:
            yield op


def ranged(request: RangeRequest, found: list[KeyVersion], revision: int) -> RangeResponse:
    """The answer to a read, of all that its range has."""
    answer = RangeResponse(header=ResponseHeader(revision=revision), count=len(found))
    if request.count_only:
        return answer
    is_sorted = request.sort_order != RangeRequestSortOrder.NONE
    bounds = (
        request.min_mod_revision,
        request.max_mod_revision,
        request.min_create_revision,
        request.max_create_revision,
    )
    limit = max(request.limit, 0)
    if limit and not is_sorted and not any(bounds):
        found = found[: limit + 1]  # what is not fetched is not sorted either
    found = [version for version in found if _is_between(version, *bounds)]
    target = RangeRequestSortTarget(request.sort_target)
    if is_sorted or target != RangeRequestSortTarget.KEY:
        is_reverse = request.sort_order == RangeRequestSortOrder.DESCEND
        found.sort(key=_ATTRIBUTES[target], reverse=is_reverse)
    answer.more = bool(limit) and len(found) > limit
    answer.kvs = [key_value(version) for version in (found[:limit] if limit else found)]
    if request.keys_only:
        for each in answer.kvs:
            each.value = b""
    return answer


def _is_between(
    version: KeyVersion, min_mod: int, max_mod: int, min_create: int, max_create: int
) -> bool:
    return (
        (not max_mod or version.mod_revision <= max_mod)
        and version.mod_revision >= min_mod
        and (not max_create or version.create_revision <= max_create)
        and version.create_revision >= min_create
    )


def _compares(compare: Compare, version: KeyVersion) -> bool:
    match compare.target:
        case CompareCompareTarget.VALUE:
            order = _order(version.value, compare.value or b"")
        case CompareCompareTarget.CREATE:
            order = _order(version.create_revision, compare.create_revision or 0)
        case CompareCompareTarget.MOD:
            order = _order(version.mod_revision, compare.mod_revision or 0)
        case CompareCompareTarget.LEASE:
            order = _order(version.lease, compare.lease or 0)
        case _:
            order = _order(version.version, compare.version or 0)
    match compare.result:
        case CompareCompareResult.EQUAL:
            return order == 0
        case CompareCompareResult.NOT_EQUAL:
            return order != 0
        case CompareCompareResult.GREATER:
            return order > 0
        case CompareCompareResult.LESS:
            return order < 0
        case _:
            return True


def _order(left: int | bytes, right: int | bytes) -> int:
    return (left > right) - (left < right)  # type: ignore[operator] # both are of one kind


def is_empty_range(start: bytes, end: bytes) -> bool:
    """Whether a watch of it could never see anything."""
    return bool(end) and end != EVERYTHING and end <= start
