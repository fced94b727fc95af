"""Snapshots in an object store: a local S3 server with real uploads, and servers that fail."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as fs
import pytest
from moto.server import ThreadedMotoServer

from binlogd.errors import ConfigError
from binlogd.host.clock import WallClock
from binlogd.host.threads import Threads
from binlogd.snapshot.publication import stored
from binlogd.snapshot.publishing import store as store_module
from binlogd.snapshot.publishing.store import Store, StoreFailed
from tests.support.snapshots import Columns, snapshot

ROWS: Columns = [(1, "id", pa.array(range(1000)))]
_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"{host}:{port}"
    server.stop()


@pytest.fixture
def uri(s3: str) -> str:
    """A bucket of this test's own."""
    bucket = f"bucket-{next(_NUMBERS)}"
    options = f"endpoint_override={s3}&scheme=http&region=us-east-1&allow_bucket_creation=true"
    uri = f"s3://testing:testing@{bucket}/exports?{options}"
    filesystem, path = fs.FileSystem.from_uri(uri)
    filesystem.create_dir(path.split("/")[0])
    return uri


@pytest.fixture
def threads() -> Iterator[Threads]:
    made = Threads(4, name="store")
    yield made
    made.close()


def objects(uri: str) -> dict[str, bytes]:
    filesystem, root = fs.FileSystem.from_uri(uri)
    selector = fs.FileSelector(root, recursive=True, allow_not_found=True)
    return {
        info.path.removeprefix(root + "/"): filesystem.open_input_stream(info.path).read()
        for info in filesystem.get_file_info(selector)
        if info.type == fs.FileType.File
    }


async def test_a_snapshot_is_uploaded_with_its_manifest_and_pointer_last(
    uri: str, threads: Threads, tmp_path: Path
) -> None:
    store = Store(uri, threads)
    path, described = snapshot(tmp_path, 100, ROWS)
    told: list[tuple[int, int]] = []
    name = await store.upload(path, described, lambda done, total: told.append((done, total)))
    found = objects(uri)
    assert found.pop("LATEST") == name.encode() + b"\n"
    assert found == {
        f"{name}/{file.relative_to(path)}": file.read_bytes()
        for file in path.rglob("*")
        if file.is_file()
    }
    assert told[-1] == (1, 1)
    assert await store.manifest(name) == described
    listed = await stored(uri)
    assert [(each.name, each.rows, each.is_latest) for each in listed.exports] == [
        (name, 1000, True)
    ]
    (prefix,) = await store.listing()
    assert (prefix.name, prefix.commit_ts, prefix.has_manifest) == (name, 100, True)
    assert await store.upload(path, described, lambda *_: None) == name
    assert len(objects(uri)) == len(found) + 1


async def test_a_bucket_that_is_not_there_is_told_before_anything_is_built(
    uri: str, threads: Threads
) -> None:
    await Store(uri.replace("&allow_bucket_creation=true", ""), threads).check()
    gone = uri.replace("bucket-", "nowhere-").replace("&allow_bucket_creation=true", "")
    with pytest.raises(ConfigError, match="there is no bucket nowhere-"):
        await Store(gone, threads).check()


async def test_an_upload_that_was_killed_is_invisible_and_goes_on(
    uri: str, threads: Threads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(uri, threads)
    earlier = await store.upload(*snapshot(tmp_path, 100, ROWS), lambda *_: None)
    path, described = snapshot(tmp_path, 200, ROWS)
    write, broken = Store._write, 0

    def fail_at_the_manifest(self: Store, name: str, content: bytes) -> None:
        nonlocal broken
        if name.endswith("manifest.json"):
            broken += 1
            raise OSError("connection reset by peer")
        write(self, name, content)

    monkeypatch.setattr(Store, "_write", fail_at_the_manifest)
    monkeypatch.setattr(store_module, "FIRST_PAUSE_S", 0.001)
    with pytest.raises(StoreFailed, match="after 5 attempts nothing new is visible"):
        await store.upload(path, described, lambda *_: None)
    assert broken == 5
    assert objects(uri)["LATEST"] == earlier.encode() + b"\n"
    assert [each.name for each in await store.listing() if each.has_manifest] == [earlier]
    put_again: list[str] = []
    put = Store._put

    def count(self: Store, file: Path, name: str) -> None:
        put_again.append(file.name)
        put(self, file, name)

    monkeypatch.setattr(Store, "_write", write)
    monkeypatch.setattr(Store, "_put", count)
    name = await store.upload(path, described, lambda *_: None)
    assert put_again == []
    assert objects(uri)[f"{name}/manifest.json"] == (path / "manifest.json").read_bytes()
    assert objects(uri)["LATEST"] == name.encode() + b"\n"


async def test_what_nobody_finished_is_swept_and_old_snapshots_are_removed(
    uri: str, threads: Threads, tmp_path: Path
) -> None:
    store = Store(uri, threads)
    names = [
        await store.upload(*snapshot(tmp_path, commit_ts, ROWS), lambda *_: None)
        for commit_ts in (300, 100, 200)
    ]
    assert objects(uri)["LATEST"] == names[0].encode() + b"\n"
    filesystem, root = fs.FileSystem.from_uri(uri)
    left = "snapshot-400-0123abcd"
    with filesystem.open_output_stream(f"{root}/{left}/shop.t/part-0.zstd.parquet") as half:
        half.write(b"PAR1")
    assert await store.sweep(WallClock()) == []
    assert await store.sweep(WallClock(), timedelta(seconds=-5)) == [left]
    assert await store.remove_surplus(1) == [names[2], names[1]]
    assert {name.partition("/")[0] for name in objects(uri)} == {"LATEST", names[0]}


async def test_a_store_that_is_none_is_named(threads: Threads, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--out ftp://nowhere"):
        Store("ftp://nowhere/a", threads)
    local = Store(f"file://{tmp_path}/there", threads)
    name = await local.upload(*snapshot(tmp_path, 100, ROWS), lambda *_: None)
    assert (tmp_path / "there" / name / "manifest.json").exists()
