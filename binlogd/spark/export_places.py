"""Where an export of a cluster goes: a directory that all machines see, or an object store.

Executors put whole files below a URL that is this export's own. The driver decides at the end what
is published of them, as an export of one machine does: by a manifest and one rename, or with the
manifest as the last object. An executor that was taken for lost may put a file there that nobody
names.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import structlog

from binlogd.archive.bases import below
from binlogd.archive.store import ArchiveUnavailable, opened
from binlogd.host.clock import WallClock
from binlogd.host.loop import run
from binlogd.host.threads import Threads
from binlogd.snapshot.process.jobdir import STAGING_PREFIX, job_directory
from binlogd.snapshot.publishing.publish import (
    manifest_document,
    manifest_there,
    point_to_latest,
    publish,
    published_path,
    remove_surplus,
)
from binlogd.snapshot.publishing.store import Store
from binlogd.snapshot.spec import Manifest
from binlogd.tso import Tso

T = TypeVar("T")

log = structlog.get_logger(__name__)

WHAT = "snapshot"
_THREADS = 4


class PublishedSnapshot(NamedTuple):
    """One that is published; `stored` is where it is in an object store, or ""."""

    path: Path
    manifest: Manifest
    stored: str = ""


@dataclass(frozen=True, slots=True)
class Sending:
    """Puts whole files below a URL; what executors are handed."""

    url: str

    def __call__(self, path: Path, name: str) -> None:
        """Raises ArchiveUnavailable."""
        opened(self.url, WHAT).put_file(name, path, path.stat().st_size)


def remove_unnamed(url: str, named: Collection[str]) -> None:
    """Removes what attempts put there that did not count."""
    store = opened(url, WHAT)
    for directory in ("", *store.directories()):
        for name in store.names(directory):
            if (whole := f"{directory}/{name}".lstrip("/")) not in named:
                store.remove(whole)


class DirectoryPlace:
    """As an export of one machine leaves it. The driver holds the lock of what is staged."""

    def __init__(self, out: Path) -> None:
        self._out = out

    def there(self, commit_ts: Tso) -> PublishedSnapshot | None:
        """The snapshot of a moment, if it is there."""
        path = published_path(self._out, commit_ts)
        if path is None:
            return None
        point_to_latest(self._out)
        return PublishedSnapshot(path, manifest_there(path))

    @contextmanager
    def begun(self, commit_ts: Tso) -> Iterator[str]:
        """Where files go; nothing is left of it at the end but what was published."""
        del commit_ts
        with job_directory(self._out.absolute(), STAGING_PREFIX) as job:
            staged = job / "snapshot"
            staged.mkdir()
            yield str(staged)

    def publish(self, url: str, manifest: Manifest, *, is_again: bool) -> PublishedSnapshot:
        """Makes it visible. Raises AlreadyThere."""
        for half in Path(url).rglob("*.new"):  # of attempts that were killed
            half.unlink()
        return PublishedSnapshot(
            publish(Path(url), self._out, manifest, is_again=is_again), manifest
        )

    def remove_surplus(self, keep: int) -> list[Path]:
        """All but the latest."""
        return remove_surplus(self._out, keep)


class StorePlace:
    """A prefix of its own, whose manifest comes last. Raises StoreFailed."""

    def __init__(self, uri: str) -> None:
        self._uri = uri

    def there(self, commit_ts: Tso) -> PublishedSnapshot | None:
        """The snapshot of a moment, if it is there. Raises ConfigError for a place where none can
        be."""

        async def look(store: Store) -> PublishedSnapshot | None:
            await store.check()
            await store.sweep(WallClock())
            for each in await store.listing():
                if each.has_manifest and each.commit_ts == commit_ts:
                    manifest = await store.manifest(each.name)
                    return PublishedSnapshot(
                        Path(each.name), manifest, f"{store.place}/{each.name}"
                    )
            return None

        return self._with_store(look)

    @contextmanager
    def begun(self, commit_ts: Tso) -> Iterator[str]:
        """Where files go. After a failure nothing is left; what is killed is swept after a day."""
        url = below(self._uri, f"snapshot-{commit_ts}-{secrets.token_hex(4)}")
        try:
            yield url
        except BaseException:
            store = opened(url, WHAT)
            try:
                store.remove_directory("")
            except ArchiveUnavailable as error:
                log.warning("unfinished_snapshot_stays", url=store.url, reason=str(error))
            raise

    def publish(self, url: str, manifest: Manifest, *, is_again: bool) -> PublishedSnapshot:
        """Makes it visible; another one of the same moment has another prefix."""
        del is_again
        name = url.partition("?")[0].rpartition("/")[2]

        async def put(store: Store) -> str:
            await store.publish(name, manifest_document(manifest))
            return f"{store.place}/{name}"

        return PublishedSnapshot(Path(name), manifest, self._with_store(put))

    def remove_surplus(self, keep: int) -> list[Path]:
        """All but the latest."""
        names = self._with_store(partial(Store.remove_surplus, keep=keep))
        return [Path(name) for name in names]

    def _with_store(self, act: Callable[[Store], Awaitable[T]]) -> T:
        async def acting() -> T:
            with closing(Threads(_THREADS, name="snapshot-store")) as threads:
                return await act(Store(self._uri, threads))

        return run(acting())


Place = DirectoryPlace | StorePlace
