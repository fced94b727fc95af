"""The sinks that are held to the contract."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from binlogd.host.disk import PosixDisk
from tests.contract.places import (
    FilePlace,
    KafkaPlace,
    MemoryPlace,
    MySqlPlace,
    Place,
    SimMySqlPlace,
    SqlitePlace,
)
from tests.support.kafka import Kafka
from tests.support.mariadb import MariaDb

_NUMBERS = itertools.count()


@pytest.fixture(
    params=[
        "memory",
        "file",
        "sqlite",
        "kafka",
        "mysql, 1 lane",
        "mysql, 4 lanes",
        "simulated mysql, 1 lane",
        "simulated mysql, 4 lanes",
        "simulated mysql, 3 in one order",
    ]
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    kind, _, lanes = request.param.partition(", ")
    disk = PosixDisk(threads=2)
    if kind == "memory":
        yield MemoryPlace()
    elif kind == "mysql":
        mariadb: MariaDb = request.getfixturevalue("mariadb")
        yield MySqlPlace(mariadb, lanes=int(lanes[0]))
    elif kind == "simulated mysql":
        yield SimMySqlPlace(int(lanes[0]), is_transactional=lanes.endswith("order"))
    elif kind == "kafka":
        kafka: Kafka = request.getfixturevalue("kafka")
        yield KafkaPlace(kafka, f"contract-{next(_NUMBERS)}")
    elif kind == "sqlite":
        yield SqlitePlace(tmp_path / "replica.db", disk)
    else:
        yield FilePlace(tmp_path, disk)
    disk.close()
