"""Whether an export that was killed is one that somebody now asks for again, and what it was.

Its directory holds the pinned input, what it had staged, marks of what is finished (`marks`) and
the spec that it worked by. Whoever resumes it works by the same spec, at the moment that it had
found: nothing is looked up or chosen anew, as the log may have grown and lost files meanwhile.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from binlogd.snapshot.publishing import marks
from binlogd.snapshot.spec import SPEC_VERSION, ExportSpec, Moment

SPEC_FILE = "spec.json"
STATE = "state"


def save(job: Path, spec: ExportSpec) -> None:
    """Puts the spec down for who may go on."""
    (job / SPEC_FILE).write_bytes(msgspec.json.encode(spec))


def resumable(job: Path, wanted: ExportSpec, as_of: Moment) -> ExportSpec | None:
    """The spec to go on with, if the directory holds what is wanted: of the same log, on the base
    that was asked for, in the same form. None also where everything had to be done again."""
    try:
        spec = msgspec.json.decode((job / SPEC_FILE).read_bytes(), type=ExportSpec)
    except (OSError, msgspec.DecodeError):
        return None
    plan = marks.read_plan(job / STATE)
    if plan is None or spec.version != SPEC_VERSION or spec.changes is not None:
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
    def told(spec: ExportSpec) -> tuple[object, ...]:
        of_log = spec.data_dir, spec.base_asked, spec.base_time_zone, spec.ignore_schemas
        return *of_log, spec.changes, spec.format, spec.layout, spec.types, spec.out

    return told(one) == told(other)
