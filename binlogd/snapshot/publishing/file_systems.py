"""Directories and object stores by pyarrow, and where they are not alike.

Invariant. What is written by `whole_object` has all of its content, or the one before. A store
shows an object when its upload is complete; but pyarrow empties an object of Azure first. There the
content goes beside, and is copied over by the store.
"""

from __future__ import annotations

import os
from base64 import b64decode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from binlogd.errors import ConfigError
from binlogd.host.words import split_url

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

NEW = ".new"
"""Behind the name of a file that is on its way to be another one."""
ACCOUNT_KEY = "AZURE_STORAGE_ACCOUNT_KEY"
"""The variable of object_store, by which delta-rs has it too."""
GOOGLE_RETRIES_S = 15
"""So long pyarrow tries a call to Google's store again; it would a quarter of an hour."""
_AZURE, _GOOGLE = ("abfs", "abfss"), ("gs", "gcs")


def file_system(url: str) -> tuple[FileSystem, str]:
    """What a URL names, with the path in it. Raises ConfigError, and pyarrow's ValueError and
    OSError."""
    from pyarrow.fs import AzureFileSystem, FileSystem  # who opens none needs no pyarrow

    parts = split_url(url)
    if parts.scheme in _AZURE:
        return AzureFileSystem(**azure_options(url)), path_in_azure(url)
    if parts.scheme in _GOOGLE and "retry_limit_seconds" not in parts.query:
        url += f"{'&' if parts.query else '?'}retry_limit_seconds={GOOGLE_RETRIES_S}"
    system, root = FileSystem.from_uri(url)
    return system, root


def path_in_azure(url: str) -> str:
    """CONTAINER/PATH, as pyarrow takes it."""
    return f"{split_url(url).username}{split_url(url).path}"


def azure_options(url: str, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """For AzureFileSystem, of `abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH`, where
    `endpoint_override` and `scheme` name another server. Raises ConfigError.

    A key there must be: pyarrow lets through what Azure's client throws where nobody says who this
    machine is, or where the key is no base64, and that ends the process.
    """
    parts, query = split_url(url), dict(parse_qsl(split_url(url).query))
    key, wrong = environ.get(ACCOUNT_KEY, ""), ""
    if not parts.username or parts.password or not parts.hostname:
        wrong = "expected abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH"
    elif not key:
        wrong = f"set {ACCOUNT_KEY} to the account's key: no other credentials are taken"
    elif not _is_base64(key):
        wrong = f"{ACCOUNT_KEY} is no key of an account: those are base64"
    if wrong:
        raise ConfigError(f"{without_secrets(url)}: {wrong}")
    given = {"account_name": str(parts.hostname).partition(".")[0], "account_key": key}
    if end := query.get("endpoint_override"):
        for kind in ("blob", "dfs"):
            given[f"{kind}_storage_authority"] = end
            given[f"{kind}_storage_scheme"] = query.get("scheme", "https")
    return given


def _is_base64(text: str) -> bool:
    try:
        return bool(b64decode(text, validate=True))
    except ValueError:
        return False


def without_secrets(url: str) -> str:
    """A URL as people may read it: no key, no options. Azure's has a container in that place."""
    parts = split_url(url)
    if not parts.scheme:
        return url
    place = parts.netloc if parts.scheme in _AZURE else parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{place}{parts.path}".rstrip("/")


@contextmanager
def whole_object(system: FileSystem, path: str) -> Iterator[Any]:
    """A stream for a small object (Azure copies 256 MiB at once), seen when it is complete."""
    if system.type_name != "abfs":
        with system.open_output_stream(path) as stream:
            yield stream
        return
    with system.open_output_stream(path + NEW) as stream:
        yield stream
    system.copy_file(path + NEW, path)
    system.delete_file(path + NEW)


def directories_in(system: FileSystem, path: str) -> list[str]:
    """The names of the directories in a directory that may be missing. Google's store tells none:
    they are those that the names of all files below show."""
    from pyarrow.fs import FileSelector, FileType

    is_deep = system.type_name == "gcs"
    selector = FileSelector(path, allow_not_found=True, recursive=is_deep)
    infos = system.get_file_info(selector)
    if not is_deep:
        return [info.base_name for info in infos if info.type == FileType.Directory]
    below = (info.path.removeprefix(f"{path}/").partition("/") for info in infos)
    return sorted({name for name, slash, _ in below if slash})


def remove_tree(system: FileSystem, path: str) -> None:
    """Removes a directory with all that is in it, if it is there."""
    if system.type_name == "gcs":  # which has no directory but the names in it
        system.delete_dir_contents(path, missing_dir_ok=True)
        return
    with suppress(FileNotFoundError):
        system.delete_dir(path)
