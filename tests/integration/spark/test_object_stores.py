"""Stores of each kind bear what archives, lakes and exports ask of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
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
from binlogd.snapshot.publishing import file_systems
from binlogd.snapshot.publishing.file_systems import ACCOUNT_KEY, NEW, without_secrets
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


IN_AZURE = "abfss://c@a.dfs.core.windows.net/p"


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("", f"set {ACCOUNT_KEY} to the account's key"),
        ("not base64!", f"{ACCOUNT_KEY} is no key of an account"),
        ("YWJ", f"{ACCOUNT_KEY} is no key of an account"),
    ],
)
def test_a_store_of_azure_without_a_key_is_refused(
    key: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ended where pyarrow was given none, or one that is none."""
    monkeypatch.setenv(ACCOUNT_KEY, key)
    for opening in (ArchiveStore.open, lambda url: place_of(f"delta:{url}"), _snapshots):
        with pytest.raises(ConfigError, match=f"^{IN_AZURE}: {said}"):
            opening(f"{IN_AZURE}?endpoint_override=h:1")


def _snapshots(url: str) -> Store:
    with closing(Threads(1, name="unused")) as threads:
        return Store(url, threads)


def test_a_store_of_google_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing listens there. Without a limit each of the attempts takes a quarter of an hour."""
    monkeypatch.setattr(file_systems, "GOOGLE_RETRIES_S", 1)
    monkeypatch.setattr(store_module, "ATTEMPTS_MAX", 1)
    store = ArchiveStore.open("gs://anonymous@b/p?endpoint_override=127.0.0.1:1&scheme=http")
    with pytest.raises(ArchiveUnavailable, match=r"archive gs://b/p/x: .*at the store"):
        store.put("x", b"")


def test_a_port_that_cannot_be_is_said_without_what_may_be_a_secret() -> None:
    for url in ("s3://key:secret", "https://host:99999/x"):
        with pytest.raises(ConfigError, match=r"^\w+://...: the port is no number up to 65535$"):
            ArchiveStore.open(url)


def test_secrets_are_left_out_and_the_container_stays() -> None:
    assert without_secrets("s3://key:secret@b/p/?region=x") == "s3://b/p"
    assert without_secrets("gs://anonymous@b/p?x=y") == "gs://b/p"
    assert without_secrets(IN_AZURE + "?endpoint_override=h:1") == IN_AZURE
    assert LakeLocation("delta", IN_AZURE).table("table-1") == IN_AZURE + "/table-1"
