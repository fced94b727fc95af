"""Kafka itself, by aiokafka: topics, transactions, and the progress that is kept in a topic.

A group of messages and the progress that they make are written in one Kafka transaction. A reader
with `isolation.level = read_committed` sees each of them once, whatever is killed: whoever starts
with the same transactional id ends what the one before left open, and shuts it out.
Source: Apache Kafka documentation, "Message Delivery Semantics"; KIP-98.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import aiokafka
import structlog
from aiokafka import errors
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.conn import collect_hosts, create_conn
from aiokafka.partitioner import murmur2
from aiokafka.protocol.metadata import MetadataRequest

from binlogd.drainer.kafka.login import KafkaLogin, token_provider
from binlogd.drainer.kafka.message import FIRST_PARTITION, KafkaMessage
from binlogd.errors import DownstreamUnavailable
from binlogd.host.tls import ClientTls

IN_FLIGHT_MAX = 1000
SLICE_MESSAGES, SLICE_BYTES = 256, 1 << 20
"""Sent between two turns of the loop: as soon as either is there, Kafka counts as at work."""
TRANSACTION_TIMEOUT_MS = 900_000
"""As long as a broker allows by default: a large upstream transaction is one of Kafka's, and one
that takes longer is broken off by the broker, again and again."""
REQUEST_TIMEOUT_MS = 10_000
TOPIC_WAIT_S = 30.0
READ_WAIT_MS = 1000
START_WAIT_S = 60.0
PROGRESS_WAIT_S = 60.0
ANSWER_WAIT_S = 60.0
"""Without any confirmation for so long Kafka counts as away."""
LOOK_S = 5.0
"""Without one for so long it is asked whether the topics are there."""
END_WAIT_S = 5.0
TOPIC_NAME_MAX = 249
REPLICAS_WISHED = 3
log = structlog.get_logger(__name__)

_ENVELOPE_BYTES = 100
_TOPIC_EXISTS = 36
_PROGRESS_KEY = b"progress"
MESSAGE_TOO_LARGE = 10
"""Kafka's own number of this error."""

_NOT_IN_A_TOPIC = re.compile(r"[^A-Za-z0-9._-]")


_MAY_NOT = (
    errors.ClusterAuthorizationFailedError,
    errors.TopicAuthorizationFailedError,
    errors.TransactionalIdAuthorizationFailed,
)


class TooLarge(Exception):
    """A message above a limit: which, of which transaction, and what to do."""

    def __init__(self, message: KafkaMessage, topic: str, limit: str, todo: str) -> None:
        self.commit_ts, self.todo = message.commit_ts, todo
        super().__init__(
            f"a message of {_size(message)} bytes, of {message.database}.{message.table}, to the"
            f" topic {topic} is above {limit}"
        )


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """`topic` may have `{schema}` and `{table}` in it; progress is kept in `progress_topic`. What
    Kafka allows in no topic's name becomes `_`, as with other senders of changes."""

    addresses: tuple[str, ...]
    topic: str
    progress_topic: str
    client_id: str
    partitions: int
    message_bytes_max: int
    compression: str = ""
    tls: ClientTls | None = None
    login: KafkaLogin | None = None


class _Sent(NamedTuple):
    message: KafkaMessage
    topic: str
    confirmation: Any


class Broker:
    """One producer. `start` before use, `stop` at the end. Raises DownstreamUnavailable."""

    def __init__(self, options: BrokerOptions) -> None:
        self._options = options
        self._producer: Any = None
        self._partitions: dict[str, int] = {}

    async def start(self) -> bytes | None:
        """Shuts out whoever wrote before; returns the progress of the last whole transaction."""
        options = self._options
        await self.greet()
        if options.tls is None and options.login is not None and options.login.is_shown:
            log.warning(
                "kafka_login_in_plain_text",
                mechanism=options.login.mechanism,
                todo="set syncer.to.security.ssl-ca and the port of a listener with TLS",
            )
        self._producer = aiokafka.AIOKafkaProducer(
            **self._ways(),
            transactional_id=options.progress_topic,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            max_request_size=options.message_bytes_max,
            compression_type=options.compression or None,
            acks="all",
        )
        async with self._errors():
            async with asyncio.timeout(START_WAIT_S):
                await self._producer.start()
            await self._topic(options.progress_topic, 1, {"cleanup.policy": "compact"})
            async with asyncio.timeout(PROGRESS_WAIT_S):
                return await self._last_progress()

    async def publish(self, messages: Iterable[KafkaMessage], progress: bytes) -> int:
        """All of them or none; returns the bytes sent. Raises TooLarge, and what iterating does."""
        async with self._errors():
            async with asyncio.timeout(ANSWER_WAIT_S):
                await self._producer.begin_transaction()
            unconfirmed: deque[_Sent] = deque()
            try:
                sent_bytes = await self._sent(messages, progress, unconfirmed)
                async with asyncio.timeout(ANSWER_WAIT_S):
                    await self._producer.commit_transaction()
            except BaseException:
                for sent in unconfirmed:
                    sent.confirmation.cancel()  # nobody asks for it any more
                await self._break_off()
                raise
        return sent_bytes

    async def _sent(
        self, messages: Iterable[KafkaMessage], progress: bytes, unconfirmed: deque[_Sent]
    ) -> int:
        """Everything, confirmed. Raises TimeoutError when nothing moves for ANSWER_WAIT_S."""
        clock = asyncio.get_running_loop().time
        sent_bytes = looked_at = 0
        async with asyncio.timeout(ANSWER_WAIT_S) as limit:
            for count, message in enumerate(messages, 1):
                topic, partitions = await self._places(message)
                for partition in partitions:
                    sent_bytes += await self._send(message, topic, partition, unconfirmed)
                if count % SLICE_MESSAGES == 0 or sent_bytes - looked_at >= SLICE_BYTES:
                    looked_at = sent_bytes
                    limit.reschedule(clock() + ANSWER_WAIT_S)
                    await asyncio.sleep(0)
            last = KafkaMessage("", "", FIRST_PARTITION, _PROGRESS_KEY, progress)
            await self._send(last, self._options.progress_topic, 0, unconfirmed)
            for sent in unconfirmed:
                await self._confirmed(sent)
                limit.reschedule(clock() + ANSWER_WAIT_S)
        return sent_bytes

    async def _confirmed(self, sent: _Sent) -> None:
        """What is confirmed is older than what is sent, so it is this message that is named."""
        try:
            while not sent.confirmation.done():
                try:
                    async with asyncio.timeout(LOOK_S):
                        await asyncio.shield(sent.confirmation)
                except TimeoutError:
                    await self._check_topics()
            sent.confirmation.result()
        except (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError) as error:
            limit = "message.max.bytes of the broker, or max.message.bytes of the topic"
            raise TooLarge(sent.message, sent.topic, limit, "raise them there") from error

    async def _check_topics(self) -> None:
        """Of one that was removed the client waits for a confirmation, as of one that moves."""
        try:
            now = await self._producer.client.fetch_all_metadata()
        except (errors.KafkaError, TimeoutError, OSError) as error:
            log.info("kafka_topics_not_listed", cause=repr(error))
            return
        for topic in self._partitions.keys() - now.topics(exclude_internal_topics=False):
            raise DownstreamUnavailable(
                f"Kafka at {self._addresses()}: the topic {topic} was removed",
                todo="what was in it is gone; binlogd makes it again, or create it",
            )

    async def _break_off(self) -> None:
        """Where Kafka does not answer now, whoever starts next does it, or the broker in time."""
        try:
            async with asyncio.timeout(END_WAIT_S):
                await self._producer.abort_transaction()
        except (errors.KafkaError, TimeoutError, OSError, AssertionError) as error:
            # aiokafka asserts that it is not in the state that it is in after a fatal error
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
            producer._message_accumulator.fail_all(errors.KafkaConnectionError("given up"))  # noqa: SLF001 - see above
            try:
                async with asyncio.timeout(END_WAIT_S):
                    await producer._sender.close()  # noqa: SLF001 - see above
            except Exception as error:  # noqa: BLE001 - it raises again whatever its sender died of
                log.info("kafka_sender_given_up", cause=repr(error))
            await producer.client.close()

    async def _send(
        self, message: KafkaMessage, topic: str, partition: int, unconfirmed: deque[_Sent]
    ) -> int:
        headers, size, limit = message.headers(), _size(message), self._options.message_bytes_max
        if size + _ENVELOPE_BYTES + sum(len(value) for _, value in headers) > limit:
            setting = f"syncer.to.kafka-max-message-size = {limit}"
            raise TooLarge(message, topic, setting, "raise it, and the broker's message.max.bytes")
        confirmation = await self._producer.send(
            topic, value=message.value, key=message.key, partition=partition, headers=headers
        )
        # nobody waits for it any more when an earlier one has failed
        confirmation.add_done_callback(lambda done: done.cancelled() or done.exception())
        unconfirmed.append(_Sent(message, topic, confirmation))
        while len(unconfirmed) > IN_FLIGHT_MAX:
            await self._confirmed(unconfirmed.popleft())
        return size

    async def _places(self, message: KafkaMessage) -> tuple[str, range]:
        topic = topic_name(self._options.topic, message.database, message.table)
        count = await self._topic(topic, self._options.partitions, {})
        if message.route is None:
            return topic, range(count)
        is_first = message.route == FIRST_PARTITION
        # as Kafka's own clients place a key
        place = 0 if is_first else (murmur2(message.route) & 0x7FFFFFFF) % count
        return topic, range(place, place + 1)

    async def _topic(self, topic: str, partitions: int, settings: dict[str, str]) -> int:
        """How many partitions a topic has; makes it where it is missing."""
        known = self._partitions.get(topic)
        if known is not None:
            return known
        admin = AIOKafkaAdminClient(**self._ways())
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
            **self._ways(), isolation_level="read_committed", enable_auto_commit=False
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
        except errors.ProducerFenced as error:
            raise DownstreamUnavailable(
                "another binlogd has begun to write to these topics (only one may: stop it), or the"
                " broker broke off a Kafka transaction that took more than"
                f" {TRANSACTION_TIMEOUT_MS // 60_000} minutes"
            ) from error
        except errors.InvalidTransactionTimeout as error:
            raise DownstreamUnavailable(
                "the broker's transaction.max.timeout.ms is below"
                f" {TRANSACTION_TIMEOUT_MS}, its default: raise it"
            ) from error
        except _MAY_NOT as error:
            raise DownstreamUnavailable(
                f"Kafka at {self._addresses()} lets this user not do what is needed: {error!r}",
                todo="give it the rights that docs/KAFKA.md lists",
            ) from error
        except TimeoutError as error:
            raise DownstreamUnavailable(
                f"Kafka at {self._addresses()} has not confirmed in time what it was sent or asked",
                todo="see that its brokers run, that the topics are there, and that enough replicas"
                " of them are in sync (min.insync.replicas)",
            ) from error
        except (errors.KafkaError, OSError) as error:
            raise DownstreamUnavailable(f"Kafka at {self._addresses()}: {error!r}") from error

    def _addresses(self) -> str:
        return ", ".join(self._options.addresses)

    # --- how it is reached -----------------------------------------------------------------

    async def greet(self) -> None:
        """Changes nothing. Raises DownstreamUnavailable that says why no address serves (a client
        of Kafka only logs that)."""
        places = collect_hosts(list(self._options.addresses), randomize=False)
        brokers = await self._first_answer([(host, port) for host, port, _ in places])
        cause: DownstreamUnavailable | None = None
        try:
            async with asyncio.timeout(START_WAIT_S):
                await self._first_answer(brokers)
                return
        except TimeoutError:
            log.info("kafka_brokers_not_all_tried", brokers=len(brokers))
        except DownstreamUnavailable as error:
            cause = error
        raise DownstreamUnavailable(
            f"Kafka at {self._addresses()} answers, and names its brokers otherwise:"
            f" {cause.message if cause else ''}",
            todo="correct the brokers' advertised.listeners, or let this host reach them",
        ) from cause

    async def _first_answer(self, places: list[tuple[str, int]]) -> list[tuple[str, int]]:
        """Of brokers, at least one, that are asked one by one where they all are. Raises
        DownstreamUnavailable of the first."""
        first: DownstreamUnavailable | None = None
        for host, port in places:
            try:
                return await self._asked(host, port)
            except (errors.KafkaError, TimeoutError, OSError, UnicodeError) as error:
                cause, todo = _why(error, self._options)
                refusal = DownstreamUnavailable(f"Kafka at {host}:{port} {cause}", todo=todo)
                first = first or refusal
        assert first is not None, "there is one"
        raise first

    async def _asked(self, host: str, port: int) -> list[tuple[str, int]]:
        """Where the brokers say that they are."""
        ways = self._ways()
        del ways["bootstrap_servers"]
        connection = await create_conn(host, port, request_timeout_ms=REQUEST_TIMEOUT_MS, **ways)
        try:
            answer = await connection.send(MetadataRequest([]))
        finally:
            connection.close()
        if not answer.brokers:
            login = self._options.login
            if login is not None and login.token_from:  # aiokafka does not look at the refusal
                raise errors.SaslAuthenticationFailed("it takes no request after the login")
            raise errors.KafkaError("it knows no broker yet")
        return [(host, port) for _, host, port, *_ in answer.brokers]

    def _ways(self) -> dict[str, Any]:
        """What every client of aiokafka is told; certificates are those of now."""
        options, login = self._options, self._options.login
        protocol = "PLAINTEXT" if options.tls is None else "SSL"
        ways: dict[str, Any] = {
            "bootstrap_servers": list(options.addresses),
            "client_id": options.client_id,
            "security_protocol": protocol if login is None else f"SASL_{protocol}",
        }
        if options.tls is not None:
            ways["ssl_context"] = options.tls.fresh()
        if login is not None:
            ways["sasl_mechanism"] = login.mechanism
            if login.token_from:
                ways["sasl_oauth_token_provider"] = token_provider(login, options.tls)
            else:
                ways |= {"sasl_plain_username": login.user, "sasl_plain_password": login.password}
        return ways


def _why(error: Exception, options: BrokerOptions) -> tuple[str, str]:
    """What happened when a broker was greeted, and what to do."""
    found = _of_login(error, options.login) or _of_tls(error, options.tls)
    if found is not None:
        return found
    if isinstance(error, errors.KafkaConnectionError):
        return "ends the connection without a word", (
            "a listener with TLS needs syncer.to.security.ssl-ca, one with a login"
            " syncer.to.kafka-sasl-mechanism"
        )
    todo = "check syncer.to.kafka-addrs, and that a broker listens there"
    return f"cannot be used: {error!r}", todo


def _of_login(error: Exception, login: KafkaLogin | None) -> tuple[str, str] | None:
    match error:
        case errors.SaslAuthenticationFailed() if login is not None and login.token_from:
            cause = f"refuses the token of {login.token_from}: {error}"
            return cause, "have a token there that this broker believes"
        case errors.SaslAuthenticationFailed() if login is not None:
            cause = f"refuses the login of {login.user} by {login.mechanism}: {error}"
            return cause, "check syncer.to.user and syncer.to.password"
        case errors.UnsupportedSaslMechanismError() if login is not None:
            todo = "set syncer.to.kafka-sasl-mechanism to one of its sasl.enabled.mechanisms"
            return f"does not offer the login {login.mechanism}", todo
        case OSError() if login is not None and str(error.filename) == login.token_from:
            cause = f"was not asked: no token from {login.token_from}: {error.strerror}"
            return cause, login.todo_token
        case errors.IllegalSaslStateError():
            todo = "remove syncer.to.kafka-sasl-mechanism, or name the port of a listener with SASL"
            return "takes no login there", todo
    return None


def _of_tls(error: Exception, tls: ClientTls | None) -> tuple[str, str] | None:
    if tls is None:
        return None
    cause = error.__cause__
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"shows a certificate that is not believed: {error.verify_message}", (
            f"check syncer.to.security.ssl-ca, which is {tls.files.ca}, and that kafka-addrs names"
            " the host as the certificate does"
        )
    if isinstance(error, ssl.SSLError) or isinstance(cause, ssl.SSLError):
        return f"ends TLS: {cause or error}", (
            "check that syncer.to.security.ssl-cert is there and signed by a CA that the broker"
            " believes, and that this is a port with TLS"
        )
    if isinstance(error, errors.KafkaConnectionError | ConnectionResetError):
        return "ends TLS without a word", "name the port of a listener with TLS in kafka-addrs"
    return None


def _size(message: KafkaMessage) -> int:
    return len(message.key or b"") + len(message.value or b"")


def topic_name(template: str, database: str, table: str) -> str:
    """Of the messages of a table; what Kafka allows in no name becomes `_`."""
    schema, of = (_NOT_IN_A_TOPIC.sub("_", each) for each in (database, table))
    return template.format(schema=schema, table=of)[:TOPIC_NAME_MAX]


async def _newest(consumer: Any, place: Any, end: int) -> bytes | None:
    newest: bytes | None = None
    while await consumer.position(place) < end:
        batches = await consumer.getmany(place, timeout_ms=READ_WAIT_MS)
        for record in batches.get(place, []):
            newest = record.value
    return newest
