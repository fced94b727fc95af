"""A snapshot in an object store, as a directory of this machine, for what is built on it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from binlogd.archive.store import ArchiveStore
from binlogd.errors import ConfigError
from binlogd.snapshot.publishing.file_systems import without_secrets
from binlogd.snapshot.publishing.publish import LATEST
from binlogd.snapshot.spec import MANIFEST_NAME, Manifest


def fetched(url: str, into: Path) -> Path:
    """Copies what a snapshot's manifest names, of the latest one where `url` holds several.

    Raises ConfigError where none is there, ArchiveUnavailable.
    """
    store, manifest = snapshot_at(url)
    for name in [MANIFEST_NAME, *manifest.names()]:
        target = into / name
        target.parent.mkdir(parents=True, exist_ok=True)
        store.fetch(name, target)
    return into


def snapshot_at(url: str) -> tuple[ArchiveStore, Manifest]:
    """A snapshot and its place; the latest one where `url` holds several. Raises ConfigError where
    none is there, ArchiveUnavailable."""
    try:
        store = ArchiveStore.open(url, what="base")
        if LATEST in store.directories():  # the link that an export makes
            store = ArchiveStore.open(below(url, LATEST), what="base")
        elif MANIFEST_NAME not in store.names():
            name = store.read(LATEST).decode().strip()
            store = ArchiveStore.open(below(url, name), what="base")
        return store, msgspec.json.decode(store.read(MANIFEST_NAME), type=Manifest)
    except (FileNotFoundError, ValueError) as error:
        raise ConfigError(
            f"--base {without_secrets(url)}: no snapshot of `binlogd export` is there: {error};"
            " name the place of the snapshots or one of them (a dump, fetch yourself)"
        ) from error


def below(url: str, name: str) -> str:
    """The URL of a name in a place; what follows a `?` says how to reach the store."""
    place, mark, options = url.partition("?")
    return f"{place.rstrip('/')}/{name}{mark}{options}"
