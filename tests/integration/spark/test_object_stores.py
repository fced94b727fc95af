"""Stores of each kind bear what archives, lakes and exports ask of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest

from binlogd.archive import store as store_module
from binlogd.archive.store import ArchiveStore, ArchiveUnavailable
from binlogd.archive.task import Task
from binlogd.archive.upload import archive
from binlogd.errors import ConfigError
from binlogd.host.clock import WallClock
from binlogd.host.threads import Threads
from binlogd.snapshot.publishing.file_systems import NEW, without_secrets
from binlogd.snapshot.publishing.store import Store
from binlogd.spark.lake.moving import Lake
from binlogd.spark.lake.place import LakeLocation, place_of
from tests.support.lakes import Killed, Pipeline, moments
from tests.support.logged import Logged, check_lake
from tests.support.object_stores import STORES, Urls, by_proxy
from tests.support.snapshots import snapshot
from tests.workload.generator import Options


@pytest.fixture(params=STORES)
def urls(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Urls]:
    with STORES[request.param](monkeypatch) as found:
        yield found


@pytest.mark.soak
def test_a_file_is_there_whole_or_as_it_was(urls: Urls, tmp_path: Path) -> None:
    store = ArchiveStore.open(urls("a/b"))
    with pytest.raises(FileNotFoundError):
        store.read("x.json")
    assert (store.names(), store.directories()) == ({}, [])
    store.put("x.json", b"one")
    seen = []

    def watched(content: bytes) -> None:
        with store._new("x.json") as stream:
            stream.write(content)
            seen.append(store.read("x.json"))

    watched(b"a second one")
    assert seen == [b"one"]
    assert store.read("x.json") == b"a second one"
    assert store.names() == {"x.json": 12}
    (tmp_path / "file").write_bytes(b"0123456789" * 1000)
    store.put_file("d/e/f", tmp_path / "file", 9000, 5)
    assert store.read_ranges("d/e/f", [(0, 5), (8990, 3), (8998, 9)]) == [b"56789", b"567", b"34"]
    assert b"".join(store.stretches("d/e/f")) == (b"0123456789" * 1000)[5:9005]
    store.put("d/g", b"")
    assert (store.directories(), store.directories("d"), store.names("d")) == (
        ["d"],
        ["e"],
        {"g": 0},
    )
    store.remove("d/g")
    store.remove("d/g")
    store.remove_directory("d")
    store.remove_directory("d")
    assert (store.directories(), store.names("d"), store.names()) == ([], {}, {"x.json": 12})
    assert ArchiveStore.open(urls("a/b")) != store


@pytest.mark.soak
def test_a_bucket_that_is_not_there_is_told_without_secrets(
    urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "RETRY_S", 0.001)
    url = urls("a").replace("bucket-", "nowhere-")
    with pytest.raises(ArchiveUnavailable, match=r"(?s)archive \w+://.*/x: .*at the store") as told:
        ArchiveStore.open(url).put("x", b"")
    assert "testing" not in str(told.value)


def test_a_full_disk_is_no_matter_of_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "RETRY_S", 0.001)
    (tmp_path / f"x{NEW}").symlink_to("/dev/full")
    with pytest.raises(ArchiveUnavailable, match=r"No space left .* it stopped: free some$"):
        ArchiveStore.open(str(tmp_path)).put("x", b"one")


@pytest.mark.soak
async def test_an_export_is_published_whole_and_removed(urls: Urls, tmp_path: Path) -> None:
    threads, uri = Threads(2, name="store"), urls("exports")
    try:
        store = Store(uri, threads)
        await store.check()
        for commit_ts in (100, 200):
            path, manifest = snapshot(tmp_path, commit_ts, [(1, "id", pa.array(range(9)))])
            name = await store.upload(path, manifest, lambda done, of: None)
        assert [each.commit_ts for each in await store.listing()] == [200, 100]
        assert (await store.manifest(name)) == manifest
        assert len(await store.remove_surplus(1)) == 1
        assert [each.commit_ts for each in await store.listing()] == [200]
        assert await store.sweep(WallClock()) == []
        with pytest.raises(ConfigError, match="there is no bucket"):
            await Store(uri.replace("bucket-", "nowhere-"), threads).check()
    finally:
        threads.close()


@pytest.mark.parametrize(
    ("kind", "store"),
    [("iceberg", "gcs"), ("delta", "gcs"), ("delta", "azure"), ("iceberg", "azure")],
)
@pytest.mark.soak
def test_a_lake_is_fed_from_an_archive(
    kind: str, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged = Logged.write(tmp_path, Options(seed=29, transactions=60, ddl_every=10))
    data_dir, history = str(logged.data_dir), str(logged.history)
    with STORES[store](monkeypatch) as urls, ExitStack() as stack:
        url, where = urls("binlogs"), urls("lake")
        if kind == "delta":
            stack.enter_context(by_proxy(store, where, monkeypatch))
        archive(Task(data_dir=data_dir, url=url, history=history, with_open=True))
        lake = Lake(place_of(f"{kind}:{where}"))
        pipeline = Pipeline(logged, lake, path=url, schemaHistory="", tables="bank.*")
        first, end = moments(logged, 2)
        pipeline.run(0, first)
        with pytest.raises(Killed):
            pipeline.run(first, end, 2)
        pipeline.run(first, end)
        check_lake(logged, lake, end, only="bank.*")


@pytest.mark.parametrize(
    ("into", "said"),
    [
        ("delta:gcs://b/lake", "a directory, s3://, gs://, abfss://; its commits were never tried"),
        ("iceberg:abfss://a.blob.core.windows.net/c/lake", "expected abfss://CONTAINER@ACCOUNT"),
        ("delta:az://c/lake", "Azure is abfss://CONTAINER@ACCOUNT"),
        ("delta:abfss://a.blob.core.windows.net/c/lake", "expected abfss://CONTAINER@ACCOUNT"),
        ("iceberg:s3a://b/lake", "S3 is s3:// here"),
        (
            "iceberg:hdfs://b/lake",
            "a directory, s3://, gs://, abfss://; its commits",
        ),
    ],
)
def test_a_lake_where_it_cannot_be_is_refused_with_the_reason(into: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        place_of(into)


def test_secrets_are_left_out_and_the_container_stays() -> None:
    assert without_secrets("s3://key:secret@b/p/?region=x") == "s3://b/p"
    assert without_secrets("gs://anonymous@b/p?x=y") == "gs://b/p"
    azure = "abfss://c@a.dfs.core.windows.net/p"
    assert without_secrets(azure + "?endpoint_override=h:1") == azure
    assert LakeLocation("delta", azure).table("table-1") == azure + "/table-1"
