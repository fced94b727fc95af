"""URLs and paths as they are given; each spelling of a `file:` URL names the same path."""

from __future__ import annotations

from pathlib import Path

import pytest

from binlogd.archive.store import ArchiveStore
from binlogd.errors import ConfigError
from binlogd.host.words import local_path, split_url
from binlogd.spark.lake.place import place_of

SPELLINGS = ("", "file:", "file://", "FILE://", "file://localhost")


@pytest.mark.parametrize("url", ["s3://", "gs:///path", "abfs://", "abfss:///x"])
def test_a_store_without_a_bucket_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"name a bucket: \w+://bucket/prefix"):
        split_url(url)


@pytest.mark.parametrize("url", ["s3://b", "hdfs:///x", "file:///x", "/x", "x", ""])
def test_what_names_its_place_is_taken(url: str) -> None:
    assert split_url(url).path in url


@pytest.mark.parametrize("before", SPELLINGS)
def test_each_spelling_of_a_path_is_that_path(before: str, tmp_path: Path) -> None:
    place = tmp_path / "a b:c"
    assert local_path(f"{before}{place}") == place
    assert place_of(f"delta:{before}{place}").url == str(place)
    ArchiveStore.open(f"{before}{place}").put("x", b"y")
    assert (place / "x").read_bytes() == b"y"


@pytest.mark.parametrize("url", ["file://backup/binlogs", "file:backup", "file://", "file:"])
def test_a_file_of_another_host_is_none_of_this_one(url: str) -> None:
    with pytest.raises(ConfigError, match="a file of this machine is file:///PATH"):
        local_path(url)


def test_what_is_no_file_has_no_path() -> None:
    assert local_path("s3://bucket/x") is None
    assert local_path("rel/ative") == Path("rel/ative")
