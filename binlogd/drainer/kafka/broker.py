"""Kafka itself, by aiokafka: topics, transactions, and the progress that is kept in a topic.

A group of messages and the progress that they make are written in one Kafka transaction. A reader
with `isolation.level = read_committed` sees each of them once, whatever is killed: whoever starts
with the same transactional id ends what the one before left open, and shuts it out.
Source: Apache Kafka documentation, "Message Delivery Semantics"; KIP-98.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import aiokafka
import structlog
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import (
    InvalidTransactionTimeout,
    KafkaConnectionError,
    KafkaError,
    MessageSizeTooLargeError,
    ProducerFenced,
)
from aiokafka.partitioner import murmur2

from binlogd.drainer.kafka.message import FIRST_PARTITION, KafkaMessage
from binlogd.errors import ConfigError, DownstreamUnavailable

IN_FLIGHT_MAX = 1000
SLICE_MESSAGES = 256
TRANSACTION_TIMEOUT_MS = 900_000
"""As long as a broker allows by default: a large upstream transaction is one of Kafka's, and one
that takes longer is broken off by the broker, again and again."""
REQUEST_TIMEOUT_MS = 10_000
TOPIC_WAIT_S = 30.0
READ_WAIT_MS = 1000
PROGRESS_WAIT_S = 60.0
ANSWER_WAIT_S = 60.0
"""Without any confirmation for so long Kafka counts as away."""
END_WAIT_S = 5.0
TOPIC_NAME_MAX = 249
REPLICAS_WISHED = 3
log = structlog.get_logger(__name__)

_ENVELOPE_BYTES = 100
_TOPIC_EXISTS = 36
_PROGRESS_KEY = b"progress"


_NOT_IN_A_TOPIC = re.compile(r"[^A-Za-z0-9._-]")


class TooLarge(Exception):
    """A message above the limit; the text says how large it is."""


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """`topic` may have `{schema}` and `{table}` in it; progress is kept in `progress_topic`.

    What Kafka allows in no topic's name becomes `_`, as with other senders of changes.
    """

    addresses: tuple[str, ...]
    topic: str
    progress_topic: str
    client_id: str
    partitions: int
    message_bytes_max: int


class _Placed(NamedTuple):
    topic: str
    partition: int
    key: bytes | None
    value: bytes | None


class Broker:
    """One producer. `start` before use, `stop` at the end. Raises DownstreamUnavailable."""

    def __init__(self, options: BrokerOptions) -> None:
        self._options = options
        self._producer: Any = None
        self._partitions: dict[str, int] = {}

    async def start(self) -> bytes | None:
        """Shuts out whoever wrote before; returns the progress of the last whole transaction.

        Raises ConfigError for an address that is none.
        """
        options = self._options
        try:
            self._producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=list(options.addresses),
                client_id=options.client_id,
                transactional_id=options.progress_topic,
                transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
                request_timeout_ms=REQUEST_TIMEOUT_MS,
                max_request_size=options.message_bytes_max,
                acks="all",
            )
        except ValueError as error:
            raise ConfigError(f"syncer.to.kafka-addrs: {error}") from error
        async with self._errors():
            await self._producer.start()
            await self._topic(options.progress_topic, 1, {"cleanup.policy": "compact"})
            async with asyncio.timeout(PROGRESS_WAIT_S):
                return await self._last_progress()

    async def publish(self, messages: Iterable[KafkaMessage], progress: bytes) -> int:
        """All of them or none; returns the bytes sent. Raises TooLarge, and what iterating does."""
        async with self._errors():
            async with asyncio.timeout(ANSWER_WAIT_S):
                await self._producer.begin_transaction()
            unconfirmed: deque[Any] = deque()
            try:
                sent_bytes = await self._sent(messages, progress, unconfirmed)
                async with asyncio.timeout(ANSWER_WAIT_S):
                    await self._producer.commit_transaction()
            except BaseException:
                for confirmation in unconfirmed:
                    confirmation.cancel()  # nobody asks for it any more
                await self._break_off()
                raise
        return sent_bytes

    async def _sent(
        self, messages: Iterable[KafkaMessage], progress: bytes, unconfirmed: deque[Any]
    ) -> int:
        """Everything, confirmed. Raises TimeoutError when nothing moves for ANSWER_WAIT_S."""
        clock = asyncio.get_running_loop().time
        sent_bytes = count = 0
        async with asyncio.timeout(ANSWER_WAIT_S) as limit:
            for message in messages:
                for placed in await self._placed(message):
                    sent_bytes += await self._send(placed, unconfirmed)
                count += 1
                if count % SLICE_MESSAGES == 0:
                    limit.reschedule(clock() + ANSWER_WAIT_S)
                    await asyncio.sleep(0)
            last = _Placed(self._options.progress_topic, 0, _PROGRESS_KEY, progress)
            await self._send(last, unconfirmed)
            for confirmation in unconfirmed:
                await confirmation
                limit.reschedule(clock() + ANSWER_WAIT_S)
        return sent_bytes

    async def _break_off(self) -> None:
        """Where Kafka does not answer now, whoever starts next does it, or the broker in time."""
        try:
            async with asyncio.timeout(END_WAIT_S):
                await self._producer.abort_transaction()
        except (KafkaError, TimeoutError, OSError) as error:
            log.info("kafka_transaction_left_open", cause=repr(error))

    async def stop(self) -> None:
        """Lets go of the connections, also where Kafka does not answer."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        try:
            async with asyncio.timeout(END_WAIT_S):
                await producer.stop()
        except TimeoutError:
            # what it waits for without end: messages that nobody takes, a request to be repeated
            producer._message_accumulator.fail_all(KafkaConnectionError("given up"))  # noqa: SLF001 - see above
            try:
                async with asyncio.timeout(END_WAIT_S):
                    await producer._sender.close()  # noqa: SLF001 - see above
            except TimeoutError:
                log.info("kafka_sender_given_up")
            await producer.client.close()

    async def _send(self, placed: _Placed, unconfirmed: deque[Any]) -> int:
        size = len(placed.key or b"") + len(placed.value or b"")
        if size + _ENVELOPE_BYTES > self._options.message_bytes_max:
            raise TooLarge(
                f"a message of {size} bytes for topic {placed.topic} is above"
                f" kafka-max-message-size = {self._options.message_bytes_max}"
            )
        confirmation = await self._producer.send(
            placed.topic, value=placed.value, key=placed.key, partition=placed.partition
        )
        # nobody waits for it any more when an earlier one has failed
        confirmation.add_done_callback(lambda done: done.cancelled() or done.exception())
        unconfirmed.append(confirmation)
        while len(unconfirmed) > IN_FLIGHT_MAX:
            await unconfirmed.popleft()
        return size

    async def _placed(self, message: KafkaMessage) -> list[_Placed]:
        topic = _topic_name(self._options.topic, message.database, message.table)
        count = await self._topic(topic, self._options.partitions, {})
        if message.route is None:
            partitions = range(count)
        else:
            is_first = message.route == FIRST_PARTITION
            # as Kafka's own clients place a key
            place = 0 if is_first else (murmur2(message.route) & 0x7FFFFFFF) % count
            partitions = range(place, place + 1)
        return [_Placed(topic, each, message.key, message.value) for each in partitions]

    async def _topic(self, topic: str, partitions: int, settings: dict[str, str]) -> int:
        """How many partitions a topic has; makes it where it is missing."""
        known = self._partitions.get(topic)
        if known is not None:
            return known
        admin = AIOKafkaAdminClient(
            bootstrap_servers=list(self._options.addresses), client_id=self._options.client_id
        )
        await admin.start()
        try:
            if topic not in await admin.list_topics():
                brokers = len((await admin.describe_cluster())["brokers"])
                replicas = min(REPLICAS_WISHED, brokers)
                made = NewTopic(topic, partitions, replicas, topic_configs=settings)
                answer = await admin.create_topics([made])
                for _, code, *reason in answer.topic_errors:
                    if code not in (0, _TOPIC_EXISTS):
                        raise DownstreamUnavailable(
                            f"Kafka does not make topic {topic} (error {code} {reason}): create it"
                        )
        finally:
            await admin.close()
        async with asyncio.timeout(TOPIC_WAIT_S):
            known = len(await self._producer.partitions_for(topic))
        self._partitions[topic] = known
        return known

    async def _last_progress(self) -> bytes | None:
        """The newest committed record of the progress topic; markers of transactions are none."""
        place = aiokafka.TopicPartition(self._options.progress_topic, 0)
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=list(self._options.addresses),
            client_id=self._options.client_id,
            isolation_level="read_committed",
            enable_auto_commit=False,
        )
        await consumer.start()
        try:
            consumer.assign([place])
            begin = (await consumer.beginning_offsets([place]))[place]
            end = (await consumer.end_offsets([place]))[place]
            back = 16
            while True:  # until a record is found, or the beginning is reached
                start = max(begin, end - back)
                consumer.seek(place, start)
                newest = await _newest(consumer, place, end)
                if newest is not None or start == begin:
                    return newest
                back *= 16
        finally:
            await consumer.stop()

    @asynccontextmanager
    async def _errors(self) -> AsyncIterator[None]:
        try:
            yield
        except MessageSizeTooLargeError as error:
            raise TooLarge(str(error)) from error
        except ProducerFenced as error:
            raise DownstreamUnavailable(
                "another binlogd has begun to write to these topics (only one may: stop it), or the"
                " broker broke off a Kafka transaction that took more than"
                f" {TRANSACTION_TIMEOUT_MS // 60_000} minutes"
            ) from error
        except InvalidTransactionTimeout as error:
            raise DownstreamUnavailable(
                "the broker's transaction.max.timeout.ms is below"
                f" {TRANSACTION_TIMEOUT_MS}, its default: raise it"
            ) from error
        except (KafkaError, TimeoutError, OSError) as error:
            addresses = ", ".join(self._options.addresses)
            raise DownstreamUnavailable(f"Kafka at {addresses}: {error!r}") from error


def _topic_name(template: str, database: str, table: str) -> str:
    schema, of = (_NOT_IN_A_TOPIC.sub("_", each) for each in (database, table))
    return template.format(schema=schema, table=of)[:TOPIC_NAME_MAX]


async def _newest(consumer: Any, place: Any, end: int) -> bytes | None:
    newest: bytes | None = None
    while await consumer.position(place) < end:
        batches = await consumer.getmany(place, timeout_ms=READ_WAIT_MS)
        for record in batches.get(place, []):
            newest = record.value
    return newest
