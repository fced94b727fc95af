"""A private Kafka: one broker in a process of its own, on data of its own.

It listens as brokers of companies do, too: with TLS, with TLS for those who show a certificate, and
with each of the SASL mechanisms, in plain text and by TLS. `USER` may do everything, `GUEST` may
log in and do nothing; an OAUTHBEARER token is believed unsigned.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import aiokafka
from aiokafka.admin import AIOKafkaAdminClient
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from tests.support.certificates import Authority
from tests.support.ports import free_port
from tests.support.started import START_TIMEOUT_S, listens, wait_for
from tests.support.tried import tried

JARS = Path(__file__).parents[2] / ".venv" / "kafka"
CLUSTER = "AAECAwQFBgcICQoLDA0ODw"
STOP_TIMEOUT_S = 120.0
READ_WAIT_MS = 500
READ_S = 120.0
USER, GUEST, PASSWORD = "alice", "guest", "correct horse"
_PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners={listeners},CONTROLLER://127.0.0.1:{controller}
advertised.listeners={listeners}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,TLS:SSL,MUTUAL:SSL,LOGIN:SASL_PLAINTEXT,BOTH:SASL_SSL
inter.broker.listener.name=PLAINTEXT
controller.listener.names=CONTROLLER
ssl.keystore.type=PEM
ssl.keystore.location={keys}
ssl.truststore.type=PEM
ssl.truststore.location={ca}
listener.name.mutual.ssl.client.auth=required
ssl.principal.mapping.rules=RULE:^.*CN=([^,]+).*$/$1/
listener.name.both.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,OAUTHBEARER
sasl.enabled.mechanisms={mechanisms}
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS;User:{user};User:binlog
log.dirs={data}
listener.name.login.oauthbearer.connections.max.reauth.ms={session}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
auto.create.topics.enable=false
broker.heartbeat.interval.ms=500
broker.session.timeout.ms=3000
{logins}"""
LISTENERS = ("PLAINTEXT", "TLS", "MUTUAL", "LOGIN", "BOTH")
"""In plain text; TLS; TLS with a certificate of the client; SASL in plain text; SASL by TLS."""
_MODULES = "org.apache.kafka.common.security"
_LOGINS = {
    "plain": f'{_MODULES}.plain.PlainLoginModule required user_{USER}="{PASSWORD}" '
    f'user_{GUEST}="{PASSWORD}";',
    "scram-sha-256": f"{_MODULES}.scram.ScramLoginModule required;",
    "scram-sha-512": f"{_MODULES}.scram.ScramLoginModule required;",
    "oauthbearer": f"{_MODULES}.oauthbearer.OAuthBearerLoginModule required "
    f'unsecuredLoginStringClaim_sub="{USER}";',
}
SESSION_MS = 1000
"""How long the listener LOGIN believes an OAUTHBEARER token: then it asks for a new one."""


def version_of(jar: str, directory: Path = JARS) -> str:
    """Of a jar by its name, as Maven has put it there."""
    (found,) = directory.glob(f"{jar}-[0-9]*.jar")
    return found.stem.removeprefix(f"{jar}-")


class Kafka:
    """`start` before use, `stop` at the end; `kill` and `start` on the same data are a crash."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.authority = Authority(directory / "tls")
        pair = self.authority.issue("broker")
        key = load_pem_private_key(pair.key.read_bytes(), None)
        pkcs8 = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        keys = pair.cert.with_suffix(".keys")
        keys.write_bytes(pkcs8 + pair.cert.read_bytes())
        self._ports = {name: free_port() for name in LISTENERS}
        self.port = self._ports["PLAINTEXT"]
        self._properties = directory / "server.properties"
        self._properties.write_text(
            _PROPERTIES.format(
                listeners=",".join(f"{each}://127.0.0.1:{at}" for each, at in self._ports.items()),
                controller=free_port(),
                data=directory / "data",
                keys=keys,
                ca=self.authority.file,
                user=USER,
                session=SESSION_MS,
                mechanisms=",".join(_LOGINS).upper(),
                logins="".join(
                    f"listener.name.{listener}.{mechanism}.sasl.jaas.config={module}\n"
                    for listener in ("login", "both")
                    for mechanism, module in _LOGINS.items()
                ),
            )
        )
        self._process: subprocess.Popen[bytes] | None = None
        users = [f"SCRAM-SHA-{bits}=[name={USER},password={PASSWORD}]" for bits in (256, 512)]
        added = [word for user in users for word in ("--add-scram", user)]
        making = self._java("kafka.tools.StorageTool", "format", "-t", CLUSTER, *added, "-c")
        making.wait(START_TIMEOUT_S)

    @property
    def address(self) -> str:
        """Where it listens in plain text."""
        tried("Kafka broker", version_of("kafka_2.13"))
        return f"127.0.0.1:{self.port}"

    def at(self, listener: str) -> str:
        """The address of one of LISTENERS."""
        tried("Kafka broker", version_of("kafka_2.13"))
        return f"127.0.0.1:{self._ports[listener]}"

    def start(self) -> None:
        """Returns when it listens."""
        self._process = self._java("kafka.Kafka")
        wait_for(self._process, lambda: listens(self.port), self._directory / "log")

    def kill(self) -> None:
        """SIGKILL, in the middle of whatever it does."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(STOP_TIMEOUT_S)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """It answers nobody for a while; a start anew takes ten seconds."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Ends it and removes its data."""
        self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def read(self, topic: str) -> list[aiokafka.ConsumerRecord]:
        """What a reader of committed messages sees, partition by partition."""
        return asyncio.run(read_committed(self.address, topic))

    async def remove(self, topic: str) -> None:
        """As if it had never been there."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self.address)
        await admin.start()
        try:
            if topic in await admin.list_topics():
                await admin.delete_topics([topic])
        finally:
            await admin.close()

    def log(self, topic: str) -> bytes:
        """What the broker keeps of the first partition."""
        (segment,) = (self._directory / "data" / f"{topic}-0").glob("*.log")
        return segment.read_bytes()

    def allow(self, user: str, resource: str, name: str, operations: Sequence[str]) -> None:
        """Adds to the rights of a user who is not everybody's."""
        words = [word for each in operations for word in ("--operation", each)]
        main, *where = "kafka.admin.AclCommand", "--bootstrap-server", self.address
        rights = ("--add", "--allow-principal", f"User:{user}", resource, name)
        process = self._java(main, *where, *rights, *words, has_properties=False)
        assert process.wait(START_TIMEOUT_S) == 0

    def _java(
        self, main: str, *arguments: str, has_properties: bool = True
    ) -> subprocess.Popen[bytes]:
        if not any(JARS.glob("kafka_*.jar")):
            raise AssertionError(f"no Kafka in {JARS}: run `make setup-test`")
        command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{JARS}/*", main]
        with (self._directory / "log").open("ab") as log:
            return subprocess.Popen(
                [*command, *arguments, *[str(self._properties)] * has_properties],
                stdout=log,
                stderr=log,
            )


async def read_committed(address: str, topic: str) -> list[aiokafka.ConsumerRecord]:
    """All committed messages of a topic, in order within each partition.

    A commit is answered before its markers stand in all partitions, so a reader of committed
    messages may be behind for a moment: it reads up to where a reader of all of them stands.
    """
    async with _consumer(address, topic, "read_uncommitted") as everything:
        ends = await everything.end_offsets(sorted(everything.assignment()))
    found: list[aiokafka.ConsumerRecord] = []
    async with _consumer(address, topic, "read_committed") as consumer, asyncio.timeout(READ_S):
        for place, end in ends.items():
            while await consumer.position(place) < end:
                batches = await consumer.getmany(place, timeout_ms=READ_WAIT_MS)
                found += batches.get(place, [])
    return found


@asynccontextmanager
async def _consumer(
    address: str, topic: str, isolation_level: str
) -> AsyncIterator[aiokafka.AIOKafkaConsumer]:
    consumer = aiokafka.AIOKafkaConsumer(
        topic,
        bootstrap_servers=address,
        isolation_level=isolation_level,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()
