"""What a Kafka can be found like: broken-off transactions, odd names, nobody there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace

import aiokafka
import pytest

from binlogd.drainer.kafka.broker import Broker, BrokerOptions, TooLarge
from binlogd.drainer.kafka.canal_json import CanalJson
from binlogd.drainer.kafka.debezium import Debezium
from binlogd.drainer.kafka.debezium_json import DebeziumJson
from binlogd.drainer.kafka.message import FIRST_PARTITION, KafkaMessage
from binlogd.drainer.kafka.sink import KafkaSink
from binlogd.drainer.txn import Ddl
from binlogd.errors import DownstreamUnavailable, RowMismatch, StatementRejected
from binlogd.tidb.model import ActionType, job_from_json
from binlogd.tso import Tso
from tests.support.kafka import Kafka, read_committed

OPTIONS = BrokerOptions(
    addresses=(),
    topic="edges",
    progress_topic="",
    client_id="edges",
    partitions=1,
    message_bytes_max=1 << 20,
)


def options(kafka: Kafka, name: str) -> BrokerOptions:
    return replace(OPTIONS, addresses=(kafka.address,), progress_topic=f"progress-{name}")


async def broken_off(kafka: Kafka, topic: str, times: int) -> None:
    """Transactions that leave nothing but records nobody sees, and their markers."""
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=kafka.address, transactional_id=f"other-{topic}"
    )
    await producer.start()
    for _ in range(times):
        await producer.begin_transaction()
        await producer.send(topic, b"never", partition=0)
        await producer.flush()
        await producer.abort_transaction()
    await producer.stop()


async def test_progress_is_found_behind_any_number_of_broken_off_transactions(kafka: Kafka) -> None:
    first = Broker(options(kafka, "markers"))
    assert await first.start() is None
    await broken_off(kafka, "progress-markers", 20)
    await first.stop()
    second = Broker(options(kafka, "markers"))
    assert await second.start() is None
    await second.publish([], b"here")
    await broken_off(kafka, "progress-markers", 40)
    await second.stop()
    third = Broker(options(kafka, "markers"))
    assert await third.start() == b"here"
    await third.stop()


async def test_a_topic_for_a_table_with_letters_that_kafka_has_not(kafka: Kafka) -> None:
    broker = Broker(replace(options(kafka, "odd"), topic="odd.{schema}.{table}"))
    await broker.start()
    message = KafkaMessage("a b", "größe$`", FIRST_PARTITION, None, b"row")
    await broker.publish([message], b"1")
    await broker.stop()
    after = Broker(options(kafka, "odd"))
    await after.start()  # waits until the transaction before is over for readers too
    await after.stop()
    (found,) = await read_committed(kafka.address, "odd.a_b.gr__e__")
    assert found.value == b"row"


async def test_messages_without_their_progress_are_seen_by_nobody(kafka: Kafka) -> None:
    small = replace(options(kafka, "whole"), topic="whole", message_bytes_max=10_000)
    broker = Broker(small)
    await broker.start()
    message = KafkaMessage("d", "t", FIRST_PARTITION, None, b"row")
    with pytest.raises(TooLarge):
        await broker.publish([message], bytes(20_000))
    await broker.publish([message._replace(value=b"whole")], b"here")
    await broker.stop()
    after = Broker(small)
    assert await after.start() == b"here"
    await after.stop()
    assert [each.value for each in await read_committed(kafka.address, "whole")] == [b"whole"]


@pytest.mark.parametrize(
    "gone", ["removed", pytest.param("progress-removed", marks=pytest.mark.soak)]
)
async def test_a_topic_that_is_removed_under_the_producer_is_named(kafka: Kafka, gone: str) -> None:
    broker = Broker(replace(options(kafka, "removed"), topic="removed"))
    await broker.start()
    message = KafkaMessage("d", "t", FIRST_PARTITION, None, b"row")
    await broker.publish([message], b"1")
    await kafka.remove(gone)
    with pytest.raises(DownstreamUnavailable, match=f": the topic {gone} was removed; "):
        await broker.publish([message], b"2")
    await broker.stop()


async def test_a_ddl_that_json_cannot_hold_stops_with_the_way_past(kafka: Kafka) -> None:
    for notation in (CanalJson(), Debezium("edges", DebeziumJson())):
        sink = KafkaSink(options(kafka, "text"), notation)
        await sink.open()
        await sink.submit([ddl(7, b"caf\xe9")])
        with pytest.raises(RowMismatch, match=r"no UTF-8.*binlogd skip 7"):
            await sink.run()
        await sink.close()


def ddl(commit_ts: int, comment: bytes) -> Ddl:
    job = replace(job_from_json(b"{}"), type=ActionType.CREATE_TABLE)
    text = f"CREATE TABLE t (a INT) COMMENT '{comment.decode('utf-8', 'surrogateescape')}'"
    return Ddl(Tso(commit_ts - 1), Tso(commit_ts), 1, job, text, "s", "t", is_skipped=False)


@pytest.mark.parametrize(
    ("limit_bytes", "limit"),
    [
        (1 << 30, r"message\.max\.bytes of the broker.*raise them there"),
        (1 << 20, r"kafka-max-message-size = 1048576: .*raise it"),
    ],
)
async def test_a_message_that_is_too_large_is_named_with_its_transaction_and_the_way_past(
    kafka: Kafka, limit_bytes: int, limit: str
) -> None:
    large = replace(options(kafka, "large"), partitions=3, message_bytes_max=limit_bytes)
    sink = KafkaSink(replace(large, topic="large"), CanalJson())
    await sink.open()
    await sink.submit(
        [ddl(7, b""), ddl(8, b"x" * (2 << 20)), *(ddl(9 + n, b"") for n in range(50))]
    )
    with pytest.raises(
        StatementRejected, match=rf"s\.t, to the topic large .*{limit}.*skip 8"
    ) as said:
        await sink.run()
    assert (said.value.commit_ts, said.value.skip_ts) == (8, 8)
    await sink.close()
    assert await read_committed(kafka.address, "large") == []


async def test_large_messages_that_go_slowly_are_not_given_up_while_they_go(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("binlogd.drainer.kafka.broker.ANSWER_WAIT_S", 1.0)
    broker = Broker(replace(options(kafka, "slow"), topic="slow"))
    await broker.start()

    def messages() -> Iterator[KafkaMessage]:
        for _ in range(15):
            yield KafkaMessage("s", "t", FIRST_PARTITION, None, bytes(800_000))
            time.sleep(0.1)  # as if it took so long to send

    assert await broker.publish(messages(), b"1") == 12_000_000
    await broker.stop()


async def test_whoever_writes_can_stop_while_kafka_is_away(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("binlogd.drainer.kafka.broker.END_WAIT_S", 0.2)
    broker = Broker(options(kafka, "away"))
    await broker.start()
    message = KafkaMessage("s", "t", FIRST_PARTITION, None, b"x")
    await broker.publish([message], b"1")
    monkeypatch.setattr("binlogd.drainer.kafka.broker.ANSWER_WAIT_S", 0.5)
    with kafka.frozen():
        with pytest.raises(
            DownstreamUnavailable,
            match="has not confirmed in time what",
        ):
            await broker.publish([message], b"2")
        await broker.stop()


async def test_nobody_there_is_said_and_leaves_nothing_behind() -> None:
    broker = Broker(replace(OPTIONS, addresses=("127.0.0.1:1",), progress_topic="p"))
    with pytest.raises(DownstreamUnavailable, match=r"Kafka at 127\.0\.0\.1:1"):
        await broker.start()
    await broker.stop()
    assert asyncio.all_tasks() == {asyncio.current_task()}
