"""An archive as a data directory on this machine, for what reads directories: the export.

Files of a local archive are linked, those of an object store are fetched; `parent` needs room for
all of them then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from binlogd.archive.catalog import (
    TAIL_NAME,
    TailPart,
    all_segments,
    history_of,
    read_catalog,
    removed,
)
from binlogd.archive.files import LogFiles, bytes_path, segment_path
from binlogd.archive.store import ArchiveStore
from binlogd.errors import Corrupt
from binlogd.log import gone
from binlogd.log.checked_text import checksummed
from binlogd.log.directory import segment_file
from binlogd.log.pointer import FIRST, FileId
from binlogd.log.record import extend
from binlogd.snapshot.process.jobdir import job_directory
from binlogd.tso import Tso

PREFIX = ".archive-"


@dataclass(frozen=True, slots=True)
class View:
    """What stands in for the data directory of the appliance."""

    data_dir: Path
    schema_history: bytes
    cluster_id: int | None
    resolved_ts: Tso


@contextmanager
def local_view(url: str, parent: Path) -> Iterator[View]:
    """Gone at the end. Raises ConfigError, Corrupt, ArchiveUnavailable."""
    store = ArchiveStore.open(url)
    catalog = read_catalog(store)
    with job_directory(parent, PREFIX) as made:
        data_dir = made / "log"
        files = LogFiles(store, catalog)
        for each in all_segments(store, catalog):
            target = segment_file(data_dir, each.shard, FileId(each.fid))
            target.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(each, TailPart):
                _add(files, each, target, store.url)
                continue
            source = segment_path(each.shard, each.fid)
            try:
                store.fetch(source, target)
            except FileNotFoundError as error:
                why = removed(store, each.shard, each.fid)
                raise why or Corrupt(f"{url}/{source}: is not there, but in the catalog") from error
            size = target.stat().st_size
            if size != each.size_bytes:
                raise Corrupt(
                    f"{url}/{source}: {size} bytes, the catalog says {each.size_bytes};"
                    " `binlogd archive --check` tells more"
                )
        for shard, fid in catalog.first_fids().items():
            if fid and catalog.gone_ts:
                noted = checksummed(b"%d %d" % (catalog.gone_ts, fid))
                gone.path(segment_file(data_dir, shard, FIRST.fid).parent).write_bytes(noted)
        history = history_of(store, catalog.history_crc32c)
        yield View(data_dir, history, catalog.cluster_id, Tso(catalog.resolved_ts))


def _add(files: LogFiles, part: TailPart, target: Path, where: str) -> None:
    """The next part of a segment; that it ends there, no footer tells."""
    (content,) = files.read_ranges(part.shard, part.fid, [(part.begin, part.size_bytes)])
    if extend(0, content) != part.crc32c:
        raise Corrupt(
            f"{where}/{bytes_path(part)}: its checksum is not the one in {TAIL_NAME};"
            " `binlogd archive --check` tells more"
        )
    with target.open("ab") as file:
        file.write(content)
