"""A private Kafka: one broker in a process of its own, on data of its own."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiokafka

from tests.support.ports import free_port

JARS = Path(__file__).parents[2] / ".venv" / "kafka"
CLUSTER = "AAECAwQFBgcICQoLDA0ODw"
START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 120.0
READ_WAIT_MS = 500
READ_S = 120.0
_PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={data}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
auto.create.topics.enable=false
"""


class Kafka:
    """`start` before use, `stop` at the end; `kill` and `start` on the same data are a crash."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.port, controller = free_port(), free_port()
        self._properties = directory / "server.properties"
        self._properties.write_text(
            _PROPERTIES.format(port=self.port, controller=controller, data=directory / "data")
        )
        self._process: subprocess.Popen[bytes] | None = None
        self._java("kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c").wait(START_TIMEOUT_S)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Returns when it listens."""
        self._process = self._java("kafka.Kafka")
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:  # until it listens, ends or takes too long
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            if self._process.poll() is not None or time.monotonic() > deadline:
                tail = (self._directory / "log").read_text(errors="replace")[-2000:]
                raise AssertionError(f"Kafka does not start: {tail}")
            time.sleep(0.05)

    def kill(self) -> None:
        """SIGKILL, in the middle of whatever it does."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(STOP_TIMEOUT_S)

    def stop(self) -> None:
        """Ends it and removes its data."""
        self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def read(self, topic: str) -> list[aiokafka.ConsumerRecord]:
        """What a reader of committed messages sees, partition by partition."""
        return asyncio.run(read_committed(self.address, topic))

    def _java(self, main: str, *arguments: str) -> subprocess.Popen[bytes]:
        if not any(JARS.glob("kafka_*.jar")):
            raise AssertionError(f"no Kafka in {JARS}: run `make setup-test`")
        command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{JARS}/*", main]
        with (self._directory / "log").open("ab") as log:
            return subprocess.Popen(
                [*command, *arguments, str(self._properties)], stdout=log, stderr=log
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
