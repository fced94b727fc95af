"""An export and what follows it: the tables of a lake, or the way into an object store.

What follows is done again by the next call for the same moment, where somebody died in between.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from binlogd.errors import ConfigError, Refused
from binlogd.extras import importing
from binlogd.host.clock import WallClock
from binlogd.host.disk import alone_in
from binlogd.host.threads import Threads
from binlogd.snapshot.estimate import Exported, Listing, described
from binlogd.snapshot.export import ExportOptions, ExportResult, check_form, export
from binlogd.snapshot.process.launcher import Borrow, Notice, running
from binlogd.snapshot.publishing.lake.version import Registered, url_of
from binlogd.snapshot.publishing.publish import read_manifest
from binlogd.snapshot.spec import LAKES, Lake, Manifest, Progress, TableEntry

if TYPE_CHECKING:
    from binlogd.snapshot.publishing.store import Store

UPLOAD_THREADS = 4
Destination = str | None
"""The URI of an object store; None is the directory of the options."""


async def published(
    options: ExportOptions,
    store: Destination = None,
    catalog: str | None = None,
    progress: Notice = lambda _: None,
    borrow: Borrow = running,
) -> ExportResult:
    """`export`, and with the format of a lake its tables below `<out>/<format>`; or, with a
    `store`, an export that is staged in the directory and uploaded.

    `catalog` names an Iceberg catalog of the user's. Raises what `export` raises, and LakeError for
    a table that could not be committed (the snapshot is published then), StoreFailed for an upload
    (the same call goes on with it).
    """
    lake = next((each for each in LAKES if each == options.format), None)
    if catalog is not None and lake != "iceberg":
        raise ConfigError(f"--catalog {catalog}: only --format iceberg has a catalog")
    with closing(Threads(UPLOAD_THREADS, name="publication")) as threads:
        if store is not None:
            if lake is not None or options.changes is not None:
                kind = "changes" if options.changes is not None else options.format
                raise ConfigError(f"--out {store}: {kind} needs a directory, no object store")
            return await _uploaded(options, _opened(store, threads), progress)
        if lake is None:
            return await export(options, progress, borrow)
        root = options.out.absolute() / lake
        url_of(lake, root)
        result = await export(options, progress, borrow)
        registered = await threads.run(
            lambda: register(lake, root, catalog, result.path, read_manifest(result.path))
        )
        return replace(result, registered=tuple(registered))


async def stored(uri: str) -> Listing:
    """The snapshots of an object store, the latest moment first. Raises as `published`."""
    with closing(Threads(UPLOAD_THREADS, name="publication")) as threads:
        store = _opened(uri, threads)
        prefixes = await store.listing()
        whole = [each.name for each in prefixes if each.has_manifest]
        found = [await _described(store, name, is_latest=name == whole[0]) for name in whole]
        return Listing(tuple(found), len(prefixes) - len(whole))


async def _described(store: Store, name: str, *, is_latest: bool) -> Exported:
    try:
        return described(name, await store.manifest(name), is_latest=is_latest)
    except Refused as error:
        return Exported(name, problem=error.message)


def _opened(uri: str, threads: Threads) -> Store:
    with importing("spark"):
        from binlogd.snapshot.publishing.store import Store
    return Store(uri, threads)


async def _uploaded(options: ExportOptions, store: Store, progress: Notice) -> ExportResult:
    """Leaves nothing of its own in the directory once everything is in the store. Raises
    Unavailable where another export into this store is at work."""
    await store.check()
    await store.sweep(WallClock())
    options.out.mkdir(parents=True, exist_ok=True)
    with alone_in(options.out, f"has an export on its way into {store.place}: wait for its end"):
        result = await export(replace(options, keep=0), progress)
        there = [each for each in await store.listing() if each.has_manifest]
        same = next((each for each in there if each.commit_ts == result.commit_ts), None)
        if same is not None and not options.is_again:
            where, is_new = f"{store.place}/{same.name}", False
            try:
                check_form(options, await store.manifest(same.name), where)
            except Refused:  # of no use to the next export of that moment
                _unstage(options.out)
                raise
        else:
            manifest, is_new = read_manifest(result.path), True
            name = await store.upload(
                result.path, manifest, lambda *done: progress(Progress("uploading", *done))
            )
            where = f"{store.place}/{name}"
        removed = await store.remove_surplus(options.keep) if options.keep else []
        _unstage(options.out)
    return replace(result, stored=where, is_new=is_new, removed=tuple(map(Path, removed)))


def _unstage(out: Path) -> None:
    for each in out.glob("[!.]*"):  # what begins with a dot is its owner's
        is_directory = each.is_dir() and not each.is_symlink()
        shutil.rmtree(each, ignore_errors=True) if is_directory else each.unlink()
    with suppress(OSError):  # an export that comes next has begun
        out.rmdir()


# --- the tables of a lake -----------------------------------------------------------------------

Commit = Callable[[TableEntry, list[Path], int], Registered]
"""Makes files the contents of a table as of a commit_ts."""


def register(
    lake: Lake, root: Path, catalog: str | None, snapshot: Path, manifest: Manifest
) -> list[Registered]:
    """Commits every table of a snapshot into a lake with its tables below the absolute `root`;
    `catalog` names an Iceberg catalog of the user's own.

    Each table gets one commit that replaces all files and carries the commit_ts: one that has it,
    or a later one, is left as it is. The files get a second name (a hard link) below the lake's own
    directory, so that a snapshot can be removed while a table's history still needs its files.

    Raises ConfigError where the library is missing, LakeError with the table that cannot be
    committed.
    """
    found = []
    with _committing(lake, root, catalog) as commit:
        for entry in manifest.tables:
            name = entry.files[0].name.partition("/")[0]
            directory = root / name.replace("%", "=")  # which `url_of` refuses
            files = [_linked(snapshot / file.name, directory, manifest) for file in entry.files]
            found.append(commit(entry, files, manifest.commit_ts))
    return found


def _linked(file: Path, directory: Path, manifest: Manifest) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    link = directory / f"{manifest.commit_ts}-{file.name}"
    if not link.exists():
        try:
            link.hardlink_to(file)
        except OSError:  # a file system without hard links
            shutil.copyfile(file, link)
    return link


def _committing(lake: Lake, root: Path, catalog: str | None) -> AbstractContextManager[Commit]:
    with importing(lake):
        if lake == "delta":
            from binlogd.snapshot.publishing.lake.delta import commit

            return nullcontext(commit)
        from binlogd.snapshot.publishing.lake.iceberg import committing

        return committing(root, catalog)
