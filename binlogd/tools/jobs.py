"""The DDL history that explains a Pump's log: what a binlogd kept beside it, and a file given."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable
from pathlib import Path

from binlogd.errors import ConfigError, Corrupt
from binlogd.log.directory import STORE_FILE, data_directory
from binlogd.tidb.model import Job, job_from_json, jobs_from_json
from binlogd.tools.reading import Source
from binlogd.upstream.store import kept_jobs

_GZIP_MAGIC = b"\x1f\x8b"


def known_jobs(sources: Iterable[Source], history: Path | None) -> list[Job]:
    """Jobs by id: those that were kept beside the sources, and those of a file with TiDB's answer
    at /ddl/history. Raises ConfigError, Corrupt."""
    found: dict[int, Job] = {}
    for source in sources:
        stores = {data_directory(shard.directory) / STORE_FILE for shard in source.shards}
        for store in sorted(path for path in stores if path.is_file()):
            found |= {job.id: job for job in map(job_from_json, kept_jobs(store))}
    if history is not None:
        found |= {job.id: job for job in _of_file(history)}
    return [found[job_id] for job_id in sorted(found)]


def _of_file(path: Path) -> list[Job]:
    try:
        content = path.read_bytes()
        if content.startswith(_GZIP_MAGIC):
            content = gzip.decompress(content)
        return jobs_from_json(content)
    except (OSError, EOFError, zlib.error, Corrupt) as error:
        raise ConfigError(
            f"--schema-history {path}: is not the JSON that TiDB serves at /ddl/history: {error}"
        ) from error
