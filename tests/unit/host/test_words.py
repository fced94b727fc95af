"""URLs as they are given."""

from __future__ import annotations

import pytest

from binlogd.errors import ConfigError
from binlogd.host.words import split_url


@pytest.mark.parametrize("url", ["s3://", "gs:///path", "abfs://", "abfss:///x"])
def test_a_store_without_a_bucket_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="names no bucket or container"):
        split_url(url)


@pytest.mark.parametrize("url", ["s3://b", "hdfs:///x", "file:///x", "/x", "x", ""])
def test_what_names_its_place_is_taken(url: str) -> None:
    assert split_url(url).path in url
