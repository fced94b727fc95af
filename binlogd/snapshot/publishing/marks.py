"""What a killed export had finished: marks beside the staged files, one for each part of a table.

Invariant. A mark stands for files that are whole, synced and named in it; whoever builds the same
moment from the same log in as many partitions may take them instead of writing them again.
Why it holds. A mark is renamed into its place after its files were synced. What goes into a part
depends on the moment, the base and the number of partitions only, which `Plan` holds: marks of
another plan are thrown away. Files are hashed again before they are believed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import msgspec

from binlogd.snapshot.spec import Report

PLAN_FILE, REPORT_FILE, PARTS = "plan.json", "report.json", "parts"


class TablePart(msgspec.Struct, frozen=True):
    """A part of a table: what Spark's partition of this number, or a file of the base, gives."""

    table_id: int
    name: str

    @property
    def file_name(self) -> str:
        """Of its mark."""
        return f"{self.table_id}-{self.name}.json"


class FileMark(msgspec.Struct, frozen=True):
    """A finished file, its path relative to the staging directory, as `files.Written` has it."""

    name: str
    rows: int
    size_bytes: int
    sha256: str
    checksum: str
    losses: str
    keys_size_bytes: int = 0
    keys_sha256: str = ""
    keys_name: str = ""


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
    try:
        return msgspec.json.decode((state / PLAN_FILE).read_bytes(), type=Plan)
    except (OSError, msgspec.DecodeError):
        return None


def mark(state: Path, part: TablePart, files: list[FileMark]) -> None:
    """Says that a part is finished; its files are synced."""
    _write(state / PARTS / part.file_name, msgspec.json.encode(files))


def marked(state: Path, staging: Path, part: TablePart) -> list[FileMark] | None:
    """The files of a part that is finished, and still what it was; None otherwise."""
    try:
        content = (state / PARTS / part.file_name).read_bytes()
        files = msgspec.json.decode(content, type=list[FileMark])
    except (OSError, msgspec.DecodeError):
        return None
    for file in files:
        names = [(file.name, file.sha256)]
        if file.keys_name:
            names.append((file.keys_name, file.keys_sha256))
        if any(_sha256(staging / name) != sha256 for name, sha256 in names):
            return None
    return files


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
            if path.name not in self._seen:
                self._seen.add(path.name)
                files = msgspec.json.decode(path.read_bytes(), type=list[FileMark])
                table_id = int(path.name.partition("-")[0])
                rows = self._rows.get(table_id, 0)
                self._rows[table_id] = rows + sum(file.rows for file in files)
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
    try:
        return msgspec.json.decode((state / REPORT_FILE).read_bytes(), type=Report)
    except (OSError, msgspec.DecodeError):
        return None


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
