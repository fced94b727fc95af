"""What TiDB, a Go Pump, a Go Drainer and binlogctl said to a real PD, said to the one here."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from grpclib.const import Cardinality

from binlogd.grpc.channel import PlainChannel
from binlogd.tidb.meta_keys import field_of, job_id_of, job_key
from binlogd.tso import compose
from binlogd.wire.generated import etcdserverpb as etcd
from binlogd.wire.generated import pdpb, tikvpb
from tests.support.pd_conversation import Conversation, OpenStream, lines, subsequence
from tests.support.stand_in import CLUSTER_ID, standing_in
from tests.support.wire_recordings import calls


@pytest.fixture(scope="module")
def conversation(tmp_path_factory: pytest.TempPathFactory) -> Conversation:
    """All that was said, once for all tests."""

    async def talk() -> Conversation:
        async with standing_in(tmp_path_factory.mktemp("pd")) as port:
            conversation = Conversation(port)
            await conversation.run(lines())
        return conversation

    return asyncio.run(talk())


def shown(kv: etcd.KeyValue) -> tuple[bytes, bytes, int, int]:
    return kv.key, kv.value, kv.version, kv.lease


def what_counts(answer: Any) -> Any:
    """Of an answer of etcd, all but revisions and who gave it."""
    match answer:
        case etcd.RangeResponse():
            return [shown(each) for each in answer.kvs], answer.more, answer.count
        case etcd.TxnResponse():
            parts = [
                what_counts(each.response_range) if each.response_range is not None else None
                for each in answer.responses
            ]
            puts = [each.response_put is not None for each in answer.responses]
            return answer.succeeded, parts, puts
        case etcd.DeleteRangeResponse():
            return answer.deleted, [shown(each) for each in answer.prev_kvs]
        case etcd.LeaseGrantResponse():
            return answer.id, answer.ttl, answer.error
        case etcd.PutResponse():
            return answer.prev_kv
        case _:
            return type(answer)


def test_etcd_answers_as_that_of_pd_did(conversation: Conversation) -> None:
    answers = [each for each in conversation.answers if "etcdserverpb" in each.method]
    assert len(answers) > 300
    differing = [
        (each.client, each.method, each.request, what_counts(each.real), what_counts(each.own))
        for each in answers
        if what_counts(each.real) != what_counts(each.own)
    ]
    assert differing == []


def test_revisions_stand_in_the_same_order(conversation: Conversation) -> None:
    stands_for = conversation.revisions
    pairs = [
        (stands_for[real.mod_revision], own.mod_revision)
        for each in conversation.answers
        if isinstance(each.real, etcd.RangeResponse)
        for real, own in zip(each.real.kvs, each.own.kvs, strict=True)
        if real.mod_revision in stands_for
    ]
    assert len(pairs) > 50
    assert all(recorded == own for recorded, own in pairs)
    made = [stands_for[revision] for revision in sorted(stands_for)]
    assert made == sorted(made)


def test_only_heartbeats_had_to_be_filled_in(conversation: Conversation) -> None:
    heartbeats = {b"/tidb-binlog/v1/drainers/vm:48249", b"/tidb-binlog/v1/pumps/pump0", b"lease"}
    others = {key: n for key, n in conversation.filled.items() if key not in heartbeats}
    assert sum(others.values()) <= 2, others


def told(answers: Sequence[etcd.WatchResponse]) -> list[Any]:
    """Of each watch: that it began or ended, and its events one by one."""
    found: list[Any] = []
    for answer in answers:
        if answer.created or answer.canceled:
            found.append((answer.watch_id, answer.created, answer.canceled))
        found += [(answer.watch_id, each.type, shown(each.kv)) for each in answer.events if each.kv]
    return found


def streams(conversation: Conversation, method: str) -> list[OpenStream]:
    return [each for each in conversation.streams if each.method.endswith(method)]


def test_a_watch_tells_what_that_of_pd_told(conversation: Conversation) -> None:
    watches = streams(conversation, "/Watch")
    assert sum(len(told(each.real)) for each in watches) > 30
    for each in watches:
        assert subsequence(told(each.real), told(each.own)), (told(each.real), told(each.own))


def test_leases_are_kept_alive_for_as_long(conversation: Conversation) -> None:
    granted = {
        each.real.id
        for each in conversation.answers
        if isinstance(each.real, etcd.LeaseGrantResponse)
    }
    kept = 0
    for each in streams(conversation, "/LeaseKeepAlive"):
        real, own = (
            [(answer.id, answer.ttl) for answer in answers if answer.id in granted]
            for answers in (each.real, each.own)
        )
        assert own == real
        kept += len(own)
    assert kept >= 8


def test_timestamps_rise_and_come_in_the_numbers_asked_for(conversation: Conversation) -> None:
    seen = []
    for each in streams(conversation, "/Tso"):
        assert [answer.count for answer in each.own] == [answer.count for answer in each.real]
        assert {answer.header.cluster_id for answer in each.own} == {CLUSTER_ID}
        for answer in each.own:
            last = compose(answer.timestamp.physical, answer.timestamp.logical)
            seen += [last - n for n in range(answer.count)]
    assert len(seen) == len(set(seen)) > 70


def test_members_lead_back_here(conversation: Conversation) -> None:
    answers = [each for each in conversation.answers if each.method.endswith("/GetMembers")]
    assert len(answers) == 8
    for each in answers:
        assert each.own.header == each.real.header == pdpb.ResponseHeader(cluster_id=CLUSTER_ID)
        for member in (each.own.leader, each.own.etcd_leader, *each.own.members):
            assert member.client_urls == ["http://127.0.0.1:8250"]
            assert member.member_id


def test_a_service_safe_point_is_kept_as_pd_keeps_it(conversation: Conversation) -> None:
    (answer,) = [each for each in conversation.answers if each.method.endswith("GCSafePoint")]
    assert answer.own.service_id == answer.real.service_id == b"gc_worker"
    assert answer.own.min_safe_point == answer.real.min_safe_point
    assert answer.own.ttl > 1 << 62


def test_every_region_and_store_leads_here(conversation: Conversation) -> None:
    asked = ("/GetRegion", "/GetStore", "/GetAllStores")
    answers = [each for each in conversation.answers if each.method.endswith(asked)]
    assert len(answers) > 15
    for each in answers:
        match each.own:
            case pdpb.GetRegionResponse():
                assert (each.own.region.start_key, each.own.region.end_key) == (b"", b"")
                assert each.own.leader.store_id == each.real.leader.store_id == 1
                assert each.own.region.peers == [each.own.leader]
            case pdpb.GetStoreResponse():
                assert each.own.store.address == "127.0.0.1:8250"
                assert each.own.store.state == each.real.store.state
            case _:
                assert [store.id for store in each.own.stores] == [
                    store.id for store in each.real.stores
                ]


async def test_the_history_is_read_as_a_go_drainer_reads_it(tmp_path: Path) -> None:
    """Its first scan, backward from the end, and then the jobs of DDL binlogs one by one."""
    recorded = [
        (tikvpb.BatchCommandsRequest().parse(request), response)
        for call in calls("drainer", "tikv", "tikvpb")
        if call.method.endswith("/BatchCommands")
        for request, response in zip(call.requests, call.responses, strict=False)
    ]
    whole = [
        (request, tikvpb.BatchCommandsResponse().parse(response))
        for request, response in recorded
        if request.requests[0].get is not None and len(response) < 60_000
    ]
    jobs = {
        job_id_of(field_of(request.requests[0].get.key)[1]): response.responses[0].get.value
        for request, response in whole
        if request.requests[0].get is not None and response.responses[0].get is not None
    }
    assert len(jobs) > 15
    (tmp_path / "history.json").write_bytes(b"[" + b",".join(jobs.values()) + b"]")
    async with (
        standing_in(tmp_path, source=tmp_path / "history.json") as port,
        PlainChannel("127.0.0.1", port) as channel,
        channel.request(
            "/tikvpb.Tikv/BatchCommands", Cardinality.STREAM_STREAM, bytes, bytes
        ) as stream,
    ):

        async def asked(request: tikvpb.BatchCommandsRequest) -> tikvpb.BatchCommandsResponse:
            await stream.send_message(bytes(request))
            return tikvpb.BatchCommandsResponse().parse(await stream.recv_message() or b"")

        for request, real in whole:
            own = await asked(request)
            assert own.request_ids == request.request_ids
            assert json.loads(_value(own)) == json.loads(_value(real))
        scans = [request for request, _ in recorded if request.requests[0].scan is not None]
        assert len(scans) > 1
        for request in scans:
            scan, found = request.requests[0].scan, (await asked(request)).responses[0].scan
            assert scan is not None
            assert found is not None
            ids = [job_id_of(field_of(pair.key)[1]) for pair in found.pairs]
            assert ids == [each for each in sorted(jobs)[::-1] if job_key(each) < scan.start_key]
        other = tikvpb.BatchCommandsRequest(
            requests=[tikvpb.BatchCommandsRequestRequest()], request_ids=[7]
        )
        unknown = await asked(other)
        assert (unknown.request_ids, bytes(unknown.responses[0])) == ([7], b"")
        await stream.cancel()


def _value(answer: tikvpb.BatchCommandsResponse) -> bytes:
    got = answer.responses[0].get
    assert got is not None
    return got.value
