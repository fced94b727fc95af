"""What a killed export had finished: marks beside the staged files, one for each part of a table.

Invariant. A mark stands for files that are whole, synced and named in it; whoever builds the same
moment from the same log in as many partitions may take them instead of writing them again.
Why it holds. A mark is renamed into its place after its files were synced. What goes into a part
depends on the moment, the base and the number of partitions only, which `Plan` holds: marks of
another plan are thrown away. Files are hashed again before they are believed.

The directory of an export holds the pinned input too, what it had staged and the spec that it
worked by. Whoever resumes it works by the same spec, at the moment that it had found: nothing is
looked up or chosen anew, as the log may have grown and lost files meanwhile.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import TypeVar

import msgspec

from binlogd.snapshot.spec import SPEC_VERSION, ExportSpec, FileEntry, Moment, Report

T = TypeVar("T")
PLAN_FILE, REPORT_FILE, PARTS = "plan.json", "report.json", "parts"
SPEC_FILE, STATE = "spec.json", "state"
"""In the directory of a job: the spec that it works by, and where its marks are."""


class Written(msgspec.Struct, frozen=True):
    """A file of a table, its path relative to the staging directory, or a problem: why the table
    cannot be told. `losses` counts, per column, what its new type cannot hold, at most so many."""

    table_id: int
    file: FileEntry = FileEntry("", 0, 0, "")
    losses: dict[str, dict[str, int]] = {}
    problem: str = ""


class Plan(msgspec.Struct, frozen=True):
    """What marks depend on."""

    commit_ts: int
    resolved_ts: int
    partitions: int
    schema_sha256: str


def part_of(part: str) -> str:
    """The name of a part, whatever attempt of its task it is."""
    return part.rpartition(".")[0] or part


def begin(state: Path, plan: Plan) -> None:
    """Keeps the marks of this plan, throws those of another away."""
    state.mkdir(parents=True, exist_ok=True)
    if read_plan(state) != plan:
        shutil.rmtree(state / PARTS, ignore_errors=True)
    (state / PARTS).mkdir(exist_ok=True)
    _write(state / PLAN_FILE, msgspec.json.encode(plan))


def read_plan(state: Path) -> Plan | None:
    """The plan of an export that got so far."""
    return _read(state / PLAN_FILE, Plan)


def mark(state: Path, table_id: int, part: str, files: list[Written]) -> None:
    """Says that a part of a table is finished, what Spark's partition of a number or a file of the
    base gives; its files are synced."""
    _write(_mark_file(state, table_id, part), msgspec.json.encode(files))


def marked(state: Path, staging: Path, table_id: int, part: str) -> list[Written] | None:
    """The files of a part that is finished, and still what it was; None otherwise."""
    found = _read(_mark_file(state, table_id, part), list[Written])
    if found is None:
        return None
    files = [entry for each in found for entry in (each.file, each.file.keys) if entry is not None]
    is_same = all(_sha256(staging / each.name) == each.sha256 for each in files)
    return found if is_same else None


def _read(path: Path, kind: type[T]) -> T | None:
    """None for what is not there, or damaged: it is made again."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, ValueError):
        return None


def _mark_file(state: Path, table_id: int, part: str) -> Path:
    return state / PARTS / f"{table_id}-{part_of(part)}.json"


class Watcher:
    """Tells of parts as they are finished."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._seen: set[str] = set()
        self._rows: dict[int, int] = {}

    def news(self) -> dict[int, int]:
        """Rows so far of each table that has more than it had when this was asked last."""
        changed = set()
        for path in (self._state / PARTS).glob("*-*.json"):
            files = None if path.name in self._seen else _read(path, list[Written])
            if files is not None:
                self._seen.add(path.name)
                table_id = int(path.name.partition("-")[0])
                rows = self._rows.get(table_id, 0)
                self._rows[table_id] = rows + sum(each.file.rows for each in files)
                changed.add(table_id)
        return {table_id: self._rows[table_id] for table_id in changed}


def has_any(state: Path) -> bool:
    """Whether there is anything to go on from."""
    return (state / REPORT_FILE).exists() or any((state / PARTS).glob("*.json"))


def keep_report(state: Path, report: Report) -> None:
    """Says that everything is staged."""
    _write(state / REPORT_FILE, msgspec.json.encode(report))


def read_report(state: Path) -> Report | None:
    """What was staged, if all of it was."""
    return _read(state / REPORT_FILE, Report)


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


def _write(path: Path, content: bytes) -> None:
    """Whole, whoever else is at it: two attempts of a task may be, which `disk.write_whole` is not
    for. A mark whose name is lost is a part that is written again."""
    making = path.with_name(f".{path.name}.{os.getpid()}")
    with making.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    making.replace(path)


# --- whether it is one that somebody asks for again -------------------------------------------


def save_spec(job: Path, spec: ExportSpec) -> None:
    """Puts the spec down for who may go on."""
    (job / SPEC_FILE).write_bytes(msgspec.json.encode(spec))


def resumable(job: Path, wanted: ExportSpec, as_of: Moment) -> ExportSpec | None:
    """The spec to go on with, if the directory holds what is wanted: of the same log, on the base
    that was asked for, in the same form. None also where everything had to be done again."""
    spec, plan = _read(job / SPEC_FILE, ExportSpec), read_plan(job / STATE)
    if spec is None or plan is None or spec.version != SPEC_VERSION or spec.changes is not None:
        return None
    if as_of.ts not in (0, plan.commit_ts) or as_of.before_latest_ms or not _is_alike(spec, wanted):
        return None
    files = [Path(each.path) for each in spec.segments]
    if not all(file.exists() for file in files) or (spec.base and not Path(spec.base).exists()):
        return None
    return msgspec.structs.replace(
        spec,
        as_of=plan.commit_ts,
        before_latest_ms=0,
        known_resolved_ts=max(spec.known_resolved_ts, plan.resolved_ts),
        is_again=wanted.is_again,
    )


def _is_alike(one: ExportSpec, other: ExportSpec) -> bool:
    def identity(spec: ExportSpec) -> tuple[object, ...]:
        of_log = spec.data_dir, spec.base_asked, spec.base_time_zone, spec.ignore_schemas
        return *of_log, spec.changes, spec.format, spec.layout, spec.types, spec.out

    return identity(one) == identity(other)
