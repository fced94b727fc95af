"""Snapshots built on snapshots: what comes out must be what the whole log gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from binlogd.archive.bases import fetched
from binlogd.archive.store import ArchiveStore
from binlogd.errors import ConfigError, Refused
from binlogd.snapshot.log.packets import Spread
from binlogd.snapshot.publishing.publish import read_manifest
from binlogd.tso import NO_TS, Tso
from tests.support import dumps
from tests.support.data_directory import collect_garbage, write_log
from tests.support.model_check import check_against_model
from tests.support.plain_export import PlainExport
from tests.support.s3 import s3_server
from tests.support.spark import WarmSpark
from tests.workload.generator import Options, Workload


@pytest.mark.parametrize("seed", [31])
def test_a_snapshot_built_on_another_holds_what_the_whole_log_gives(
    seed: int, spark: WarmSpark, tmp_path: Path
) -> None:
    workload = Workload(Options(seed=seed, transactions=400, ddl_every=12))
    data_dir = tmp_path / "data"
    write_log(data_dir, [record.payload for record in workload.records()], segment_bytes=10_000)
    history, last = workload.history(), workload.model.last_commit_ts
    moments = workload.model.moments()
    middle = moments[len(moments) // 2]
    base = spark.export(data_dir, history, Tso((moments[0] + middle) // 2))
    for as_of in (middle, NO_TS):
        snapshot = spark.export(data_dir, history, as_of, base=base)
        check_against_model(snapshot, workload, as_of or last)
        base_ts = read_manifest(base).commit_ts
        if as_of:
            assert collect_garbage(data_dir, Tso(base_ts)) > 0
            with pytest.raises(Refused, match="GC removed the beginning of the log"):
                spark.export(data_dir, history, as_of)
        base = snapshot


def test_a_snapshot_is_built_on_one_in_an_object_store(tmp_path: Path) -> None:
    """Without a Spark, which has no part in it."""
    workload = Workload(Options(seed=33, transactions=60, ddl_every=10))
    data_dir, work = tmp_path / "data", tmp_path / "work"
    work.mkdir()
    write_log(data_dir, [record.payload for record in workload.records()])
    middle = workload.model.moments()[len(workload.model.moments()) // 2]
    export = PlainExport(work, data_dir, workload.history(), Spread(3, 1), 1 << 20)
    made = export.snapshot(Tso(middle))
    with s3_server() as s3:
        url = s3.url("exports")
        with pytest.raises(ConfigError, match=r"no snapshot of `binlogd export` is there") as told:
            fetched(url, tmp_path / "nothing")
        assert "testing" not in str(told.value)
        store = ArchiveStore.open(url)
        for path in (each for each in made.rglob("*") if each.is_file()):
            store.put_file(f"snapshot-1/{path.relative_to(made)}", path, path.stat().st_size)
        store.put("LATEST", b"snapshot-1\n")
        base = fetched(url, tmp_path / "base")
    check_against_model(export.snapshot(base=base), workload, workload.model.last_commit_ts)


def write_dump(directory: Path, workload: Workload, as_of: Tso) -> None:
    """What Dumpling would have written then: tables as SQL and CSV by turns."""
    dumps.write_metadata(directory, as_of)
    contents = workload.model.contents(as_of)
    for number, (name, table) in enumerate(sorted(workload.model.tables(as_of).items())):
        columns = [column for column in table.columns if column.is_public]
        kind = ("sql", "csv")[number % 2]
        dumps.write_table(directory, name, columns, contents[name].rows, kind=kind)


@pytest.mark.parametrize("seed", [32])
def test_a_snapshot_built_on_a_dump_holds_what_the_whole_log_gives(
    seed: int, spark: WarmSpark, tmp_path: Path
) -> None:
    workload = Workload(Options(seed=seed, transactions=300, ddl_every=15))
    data_dir, dump = tmp_path / "data", tmp_path / "dump"
    write_log(data_dir, [record.payload for record in workload.records()], segment_bytes=10_000)
    history, last = workload.history(), workload.model.last_commit_ts
    dumped_at = Tso((workload.model.moments()[0] + last) // 2)
    write_dump(dump, workload, dumped_at)
    assert collect_garbage(data_dir, dumped_at) > 0
    with pytest.raises(ConfigError, match="in which time zone"):
        spark.export(data_dir, history, base=dump)
    middle = Tso((dumped_at + last) // 2)
    first = spark.export(data_dir, history, middle, base=dump, time_zone="UTC")
    check_against_model(first, workload, middle)
    second = spark.export(data_dir, history, base=first)
    check_against_model(second, workload, last)
