"""Snapshots in an object store: `s3://`, `gs://` and whatever else pyarrow opens.

A store has no rename, so files go below a prefix of their own, the manifest comes last of them,
and `LATEST` after that. Readers believe a prefix that has a manifest, nothing else. The prefix
names the moment and the content, so an upload that was killed goes on where it stopped; prefixes
that nobody finished are removed after a day. Every call is tried a few times.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import msgspec
import pyarrow as pa
import pyarrow.fs as fs

from binlogd.errors import ConfigError, GaveUp, Refused
from binlogd.host.threads import Threads
from binlogd.ports import Clock
from binlogd.snapshot.publishing.file_systems import (
    file_system,
    remove_tree,
    whole_object,
    without_secrets,
)
from binlogd.snapshot.publishing.publish import LATEST
from binlogd.snapshot.spec import MANIFEST_NAME, Manifest

T = TypeVar("T")

UPLOADS_MAX = 4
"""Files on their way at the same time."""
ATTEMPTS, FIRST_PAUSE_S = 5, 0.2
BLOCK_BYTES = 8 << 20
LEFTOVER_AGE = timedelta(days=1)
_PREFIX = re.compile(r"snapshot-(\d+)-([0-9a-f]{8})")


class StoreFailed(GaveUp):
    """A store that does not answer, or not as it should."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A prefix of the store; only one with a manifest is a snapshot."""

    name: str
    commit_ts: int
    has_manifest: bool
    newest: datetime


class Store:
    """A place of snapshots. Raises ConfigError for a URI that pyarrow does not open."""

    def __init__(self, uri: str, threads: Threads) -> None:
        try:
            self._fs, self._root = file_system(uri)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise ConfigError(f"--out {without_secrets(uri)}: {error}") from error
        self.place = without_secrets(uri)
        """The URI as it may be shown."""
        self._makes_bucket = "allow_bucket_creation=true" in uri.lower()
        self._threads = threads
        self._root = self._root.rstrip("/")

    async def check(self) -> None:
        """Whether snapshots can be there, before one is built. Raises ConfigError, StoreFailed."""
        if self._fs.type_name not in ("s3", "gcs", "abfs") or self._makes_bucket:
            return
        bucket = self._root.partition("/")[0]
        found = await self._patiently(bucket, lambda: self._fs.get_file_info(bucket))
        if found.type == fs.FileType.NotFound:
            raise ConfigError(
                f"--out {self.place}: there is no bucket {bucket}, or these credentials do not see"
                " it; make it, or add allow_bucket_creation=true behind the ?"
            )

    async def listing(self) -> list[Stored]:
        """Every prefix, the latest moment first."""
        found: dict[str, list[fs.FileInfo]] = {}
        infos = await self._patiently("listing", self._infos)
        for info in infos:
            name, _, rest = info.path.removeprefix(self._root + "/").partition("/")
            if _PREFIX.fullmatch(name) and rest:
                found.setdefault(name, []).append(info)
        stored = [_stored(name, files) for name, files in found.items()]
        return sorted(stored, key=lambda each: (each.commit_ts, each.newest), reverse=True)

    def _infos(self) -> list[fs.FileInfo]:
        selector = fs.FileSelector(self._root, allow_not_found=True, recursive=True)
        infos = self._fs.get_file_info(selector)
        return [info for info in infos if info.type == fs.FileType.File]

    async def manifest(self, name: str) -> Manifest:
        """The manifest of a snapshot. Raises Refused where it is damaged."""
        content = await self._patiently(name, lambda: self._read(f"{name}/{MANIFEST_NAME}"))
        try:
            return msgspec.json.decode(content, type=Manifest)
        except ValueError as error:
            raise Refused(
                f"{self.place}/{name}: its {MANIFEST_NAME} does not decode: {error}; remove it, and"
                " export that moment again"
            ) from error

    async def upload(
        self, snapshot: Path, manifest: Manifest, report: Callable[[int, int], None]
    ) -> str:
        """Puts a snapshot there, whole or invisible; its name. `report` hears of files. Raises
        StoreFailed when the store keeps failing."""
        name = prefix_of(snapshot, manifest)
        files, there = _files_of(snapshot), await self._sizes(name)
        todo = [each for each, size in files.items() if there.get(each) != size]
        gate, done = asyncio.Semaphore(UPLOADS_MAX), len(files) - len(todo)
        report(done, len(files))

        async def put(file: str) -> None:
            nonlocal done
            async with gate:
                await self._patiently(file, lambda: self._put(snapshot / file, f"{name}/{file}"))
            done += 1
            report(done, len(files))

        try:
            async with asyncio.TaskGroup() as group:
                for each in todo:
                    group.create_task(put(each), name=f"upload-{each}")
        except* StoreFailed as failed:
            raise failed.exceptions[0] from None
        await self.publish(name, (snapshot / MANIFEST_NAME).read_bytes())
        return name

    async def publish(self, name: str, manifest: bytes) -> None:
        """Makes a snapshot of a prefix whose files are there."""
        path = f"{name}/{MANIFEST_NAME}"
        await self._patiently(path, lambda: self._write(path, manifest))
        await self.point_to_latest()

    async def _sizes(self, name: str) -> dict[str, int]:
        infos = await self._patiently(name, self._infos)
        start = f"{self._root}/{name}/"
        return {
            info.path.removeprefix(start): info.size
            for info in infos
            if info.path.startswith(start)
        }

    async def point_to_latest(self) -> None:
        """Lets the object LATEST name the snapshot of the latest moment."""
        newest = next((each for each in await self.listing() if each.has_manifest), None)
        if newest is None:
            return
        content = newest.name.encode() + b"\n"
        await self._patiently(LATEST, lambda: self._write(LATEST, content))

    async def remove_surplus(self, keep: int) -> list[str]:
        """Removes all snapshots but the `keep` latest, manifests first. What it removed."""
        whole = [each.name for each in await self.listing() if each.has_manifest]
        for name in whole[keep:]:
            await self._remove(name, has_manifest=True)
        return whole[keep:]

    async def sweep(self, clock: Clock, age: timedelta = LEFTOVER_AGE) -> list[str]:
        """Removes prefixes without a manifest that nobody has written to for a while."""
        before = datetime.fromtimestamp(clock.wall_ms() / 1000, UTC) - age
        left = [
            each.name
            for each in await self.listing()
            if not each.has_manifest and each.newest <= before
        ]
        for name in left:
            await self._remove(name, has_manifest=False)
        return left

    async def _remove(self, name: str, *, has_manifest: bool) -> None:
        if has_manifest:
            path = f"{self._root}/{name}/{MANIFEST_NAME}"
            await self._patiently(name, lambda: self._fs.delete_file(path))
        await self._patiently(name, lambda: remove_tree(self._fs, f"{self._root}/{name}"))

    async def _patiently(self, what: str, call: Callable[[], T]) -> T:
        """Calls the store, again after a pause when it fails."""
        for attempt in range(ATTEMPTS):
            try:
                return await self._threads.run(call)
            except (OSError, pa.ArrowException) as error:
                if attempt + 1 == ATTEMPTS:
                    raise StoreFailed(
                        f"{self.place}: {what}: {error}; after {ATTEMPTS} attempts nothing new is"
                        " visible there, and the same command goes on where it stopped"
                    ) from error
                await asyncio.sleep(FIRST_PAUSE_S * 2**attempt)
        raise AssertionError("the last attempt returns or raises")

    def _read(self, name: str) -> bytes:
        with self._fs.open_input_stream(f"{self._root}/{name}") as stream:
            content: bytes = stream.read()
            return content

    def _put(self, file: Path, name: str) -> None:
        with file.open("rb") as source, self._fs.open_output_stream(self._at(name)) as stream:
            shutil.copyfileobj(source, stream, BLOCK_BYTES)

    def _write(self, name: str, content: bytes) -> None:
        with whole_object(self._fs, self._at(name)) as stream:
            stream.write(content)

    def _at(self, name: str) -> str:
        path = f"{self._root}/{name}"
        if isinstance(self._fs, fs.LocalFileSystem):
            self._fs.create_dir(path.rpartition("/")[0])
        return path


def prefix_of(snapshot: Path, manifest: Manifest) -> str:
    """The prefix of a snapshot: its moment, and a mark of its manifest."""
    digest = hashlib.sha256((snapshot / MANIFEST_NAME).read_bytes()).hexdigest()
    return f"snapshot-{manifest.commit_ts}-{digest[:8]}"


def _files_of(snapshot: Path) -> dict[str, int]:
    """The files of a snapshot but its manifest, with their sizes."""
    found = {
        str(path.relative_to(snapshot)): path.stat().st_size
        for path in sorted(snapshot.rglob("*"))
        if path.is_file()
    }
    del found[MANIFEST_NAME]
    return found


def _stored(name: str, files: list[fs.FileInfo]) -> Stored:
    found = _PREFIX.fullmatch(name)
    assert found is not None
    has_manifest = any(info.path.endswith(f"{name}/{MANIFEST_NAME}") for info in files)
    newest = max(info.mtime for info in files)
    return Stored(name, int(found[1]), has_manifest, newest)
