"""What was exported into a directory, and what an export would be: tables, log, row changes, time;
from a look at the log, without Spark.

Row changes are counted in samples of the log. The time comes from an earlier export into the same
directory, where there is one that took long enough to tell, or from what was measured on a machine
with nothing else to do.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from binlogd.errors import MalformedBinlog
from binlogd.log.record import FRAMING
from binlogd.settings.quantities import wall_clock
from binlogd.snapshot.bases import choice
from binlogd.snapshot.export import ExportOptions
from binlogd.snapshot.process.jobdir import STAGING_PREFIX, log_files
from binlogd.snapshot.publishing.publish import LATEST, read_manifest
from binlogd.snapshot.spec import MANIFEST_NAME, Manifest, moment
from binlogd.tidb.model import jobs_from_json
from binlogd.tidb.schema import SchemaTracker
from binlogd.tso import NO_TS, Tso
from binlogd.wire.mutation import mutations
from binlogd.wire.peek import body


@dataclass(frozen=True, slots=True)
class Exported:
    """A snapshot, or the changes of a while. It was made of a log of `log_bytes`, in `seconds`.
    `problem` says why its manifest cannot be read."""

    name: str
    commit_ts: int = 0
    time: str = ""
    from_ts: int = 0
    data_format: str = ""
    layout: str = ""
    tables: int = 0
    rows: int = 0
    size_bytes: int = 0
    seconds: float = 0.0
    left_out: int = 0
    base_ts: int = 0
    log_bytes: int = 0
    is_latest: bool = False
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Listing:
    """The exports of a directory, the latest moment first; `unfinished` are begun or were killed,
    and none of it is visible."""

    exports: tuple[Exported, ...]
    unfinished: int


def listing(out: Path) -> Listing:
    """Everything that was exported into a directory; [] where there is none."""
    latest = (out / LATEST).resolve().name
    found = [
        exported(path, is_latest=path.name == latest)
        for pattern in ("snapshot-*", "changes-*")
        for path in out.glob(pattern)
        if path.is_dir()
    ]
    found.sort(key=lambda each: (each.commit_ts, each.name), reverse=True)
    return Listing(tuple(found), sum(1 for _ in out.glob(f"{STAGING_PREFIX}*")))


def exported(path: Path, *, is_latest: bool) -> Exported:
    """One export."""
    try:
        return described(path.name, read_manifest(path), is_latest=is_latest)
    except (OSError, ValueError) as error:
        return Exported(path.name, problem=f"{MANIFEST_NAME}: {error}")


def described(name: str, manifest: Manifest, *, is_latest: bool) -> Exported:
    """What its manifest says of an export."""
    files = [file for table in manifest.tables for file in table.files]
    return Exported(
        name=name,
        commit_ts=manifest.commit_ts,
        time=manifest.time,
        from_ts=manifest.changes.from_ts if manifest.changes else 0,
        data_format=manifest.data_format,
        layout=manifest.layout,
        tables=len(manifest.tables),
        rows=sum(table.rows for table in manifest.tables),
        size_bytes=sum(file.size_bytes for file in files),
        seconds=manifest.seconds,
        left_out=len(manifest.left_out),
        base_ts=manifest.base.commit_ts if manifest.base else 0,
        log_bytes=sum(each.size_bytes for each in manifest.log),
        is_latest=is_latest,
    )


SAMPLES, SAMPLE_BYTES = 8, 2 << 20
START_S = 5.0
"""Until the first row is read: with the class archive, and Python workers that begin."""
CHANGES_PER_S = 145_000, 231_000
"""On one core, and on two; of more nobody has measured. Source: docs/PERFORMANCE.md."""
SECONDS_TO_LEARN_FROM = 4 * START_S
"""Of less, the start is too much, which differs by whether a process was kept."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What would be exported. `basis` says where `seconds` comes from; `as_of` 0 is the latest."""

    as_of: int
    time: str
    tables: tuple[str, ...]
    segments: int
    log_bytes: int
    changes: int
    base: str
    seconds: float
    basis: str
    free_bytes: int


def estimate(options: ExportOptions) -> Estimate:
    """Looks at what an export with these options would find. Raises ConfigError."""
    choice.check_zone(options.base, options.base_time_zone)
    files = [path for *_, path in log_files(options.data_dir)]
    sizes = {path: path.stat().st_size for path in files}
    as_of = moment(options.as_of).ts or options.resolved_ts
    changes = _changes(files, sizes)
    log_bytes = sum(sizes.values())
    seconds, basis = _learned(options.out, log_bytes) or _measured(options.cores, changes)
    latest = next((each for each in listing(options.out).exports if not each.from_ts), None)
    base = "none"
    if options.base == choice.AUTO and latest is not None:
        base = f"{latest.name}, if it can be built on: then less is read"
    elif options.base not in (choice.AUTO, choice.NONE):
        base = options.base_shown or options.base
    return Estimate(
        as_of=as_of,
        time=wall_clock(as_of) if as_of else "the latest",
        tables=_tables(options, as_of),
        segments=len(files),
        log_bytes=log_bytes,
        changes=changes,
        base=base,
        seconds=round(START_S + seconds, 1),
        basis=basis,
        free_bytes=_free_bytes(options.out),
    )


def _changes(files: Sequence[Path], sizes: dict[Path, int]) -> int:
    """Row changes in all of the log, from whole records at the beginnings of some files."""
    step = max(1, len(files) // SAMPLES)
    counted = read = 0
    for path in files[::step]:
        with path.open("rb") as file:
            sample = FRAMING.split(file.read(min(sizes[path], SAMPLE_BYTES)))
        read += sample.consumed
        for _, payload in sample.records:
            try:
                _, found = mutations(body(payload).prewrite_value)
            except MalformedBinlog:
                found = []
            counted += sum(len(each.sequence) for each in found)
    return round(counted * sum(sizes.values()) / read) if read else 0


def _learned(out: Path, log_bytes: int) -> tuple[float, str] | None:
    """How long it takes by the latest export that read all of a log, and what that is."""
    for each in listing(out).exports:
        is_whole = not each.base_ts and not each.from_ts
        if is_whole and each.log_bytes and each.seconds >= SECONDS_TO_LEARN_FROM:
            rate = each.log_bytes / (each.seconds - START_S)
            return log_bytes / rate, f"(at {rate / 1e6:,.1f} MB of log/s, as {each.name} was made)"
    return None


def _measured(cores: int, changes: int) -> tuple[float, str]:
    rate = CHANGES_PER_S[min(cores, len(CHANGES_PER_S)) - 1]
    few = "one core" if cores == 1 else "two cores"
    return changes / rate, f"(at {rate:,} changes/s, as measured on {few} with nothing else to do)"


def _tables(options: ExportOptions, as_of: Tso) -> tuple[str, ...]:
    tracker = SchemaTracker()
    jobs = jobs_from_json(options.schema_history)
    tracker.load(jobs)
    tracker.apply_finished_by(as_of or Tso(max((job.finished_ts for job in jobs), default=NO_TS)))
    ignored = {name.lower() for name in options.ignore_schemas}
    return tuple(
        f"{named.database}.{named.table}"
        for named, info in tracker.tables()
        if not (info.is_view or info.is_sequence or named.database.lower() in ignored)
    )


def _free_bytes(out: Path) -> int:
    place = out.absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free
