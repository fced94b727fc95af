"""Words that somebody typed, or that the system gives as bytes: a command line, variables, URLs."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from binlogd.errors import ConfigError


def is_utf8(word: str) -> bool:
    """Whether it was; of what was not, Python has surrogates, which no peer and no file takes."""
    return not any("\ud800" <= each <= "\udfff" for each in word)


def harmless(text: str) -> str:
    """With nothing in it that a terminal would obey; lines and tabs stay."""
    return _OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def local_path(url: str) -> Path | None:
    """What a path or a `file:` URL names on this machine, in which nothing is quoted; None for any
    other URL. Raises ConfigError where a host is named."""
    if url[:5].lower() != "file:":
        return Path(url) if "://" not in url else None
    path = url[5:].removeprefix("//").removeprefix("localhost")
    if not path.startswith("/"):
        raise ConfigError(f"{url}: a file of this machine is file:///PATH, or a path")
    return Path(path)


def split_url(url: str) -> SplitResult:
    """Its parts. Raises ConfigError, without what may be a secret in it."""
    scheme = url.partition("://")[0]
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigError(f"{scheme}://...: {error}") from None
    try:
        parts.port  # noqa: B018 - nobody else looks before a library trips over it
    except ValueError:
        raise ConfigError(f"{scheme}://...: the port is no number up to 65535") from None
    if not parts.netloc and parts.scheme in ("s3", "gs", "abfs", "abfss"):
        raise ConfigError(f"{scheme}://...: name a bucket: {scheme}://bucket/prefix")
    return parts
