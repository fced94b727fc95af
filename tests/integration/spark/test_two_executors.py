"""Two executors, each a process, of which some are killed while a pipeline works: what it keeps is
what the upstream was, at each commit_ts that it publishes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from binlogd.settings import config
from binlogd.settings.setup import Setup
from binlogd.spark.database import DatabaseSink
from binlogd.spark.lake import merging
from binlogd.spark.lake.manifest import MODES, LakeMode
from binlogd.spark.lake.moving import Lake
from binlogd.spark.lake.place import KINDS, place_of
from binlogd.spark.pipeline import (
    DatabaseTarget,
    LakeTarget,
    PipelineOptions,
    PipelineTarget,
    start,
)
from binlogd.spark.request import request
from tests.support.appliance import into_mariadb
from tests.support.faults import RecordProperty, counted
from tests.support.logged import Logged
from tests.support.mariadb import MariaDb
from tests.support.model_in_mysql import PREFIX
from tests.support.spark import WarmSpark
from tests.support.two_executors import FAULT, SPECULATION, Killer, kept_database, kept_lake
from tests.workload.generator import Options
from tests.workload.tables import STANDARD

KILLS = 20
TABLES = tuple(each for each in STANDARD if each.name in ("accounts", "audit"))
"""`audit` has no key: whatever is applied twice is there twice."""


def into_database(logged: Logged, server: MariaDb, checkpoint: Path) -> PipelineTarget:
    setup = Setup(config.parse(into_mariadb(server), "the test's"))
    return DatabaseTarget(
        DatabaseSink(setup, request(logged.options(form="binlog"))), str(checkpoint)
    )


def run(
    session: SparkSession, logged: Logged, target: PipelineTarget, checkpoint: Path, batch: int
) -> None:
    source = logged.options(maxTransactionsPerTrigger=str(batch), partitionTransactions="10")
    start(session, PipelineOptions(source, str(checkpoint), None), target).awaitTermination()


def check(killer: Killer, published: Sequence[int], logged: Logged, kills: int) -> None:
    """So many were killed, in all phases alike, while batch after batch came to be."""
    assert killer.killed.total() == kills, killer.killed
    assert len(published) > 1
    assert published[-1] == logged.workload.model.last_commit_ts


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_lake_is_what_the_upstream_was_though_executors_are_killed_in_all_phases(
    kind: str,
    mode: LakeMode,
    spark: WarmSpark,
    tmp_path: Path,
    record_property: RecordProperty,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(merging, "PART_BYTES", 4_000)  # larger tables are merged by two tasks
    logged = Logged.write(tmp_path, Options(seed=61, transactions=600, ddl_every=40))
    checkpoint, root = tmp_path / "checkpoint", tmp_path / "lake"
    asked = request(logged.options(form="changes"))
    target = LakeTarget(Lake(place_of(f"{kind}:{root}"), mode), asked, str(checkpoint))
    into = f"pipeline into {kind.title()}" + (", a changelog" if mode == "changelog" else "")
    with (
        counted(record_property, fault=FAULT, target=into) as cases,
        spark.on_two_executors({}) as session,
    ):
        phases = ["reading", "between stages", "merging", "committing", "publishing"]
        killer = Killer(session, phases, KILLS)
        with kept_lake(killer, logged, root) as published:
            run(session, logged, target, checkpoint, batch=50)
        check(killer, published, logged, KILLS)
        cases.number += KILLS


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_database_is_what_the_upstream_was_though_executors_are_killed_in_all_phases(
    spark: WarmSpark, mariadb: MariaDb, tmp_path: Path, record_property: RecordProperty
) -> None:
    made = Options(seed=62, transactions=600, ddl_every=60, prefix=PREFIX, tables=TABLES)
    logged, checkpoint = Logged.write(tmp_path, made), tmp_path / "checkpoint"
    target = into_database(logged, mariadb, checkpoint)
    with (
        counted(record_property, fault=FAULT, target="pipeline into MariaDB") as cases,
        spark.on_two_executors(SPECULATION) as session,
    ):
        killer = Killer(session, ["between stages", "applying", "committing", "publishing"], KILLS)
        with kept_database(killer, logged, mariadb) as published:
            run(session, logged, target, checkpoint, batch=50)
        check(killer, published, logged, KILLS)
        cases.number += KILLS
