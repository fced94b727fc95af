"""Which published snapshot an export builds on, and why.

A base saves reading the log up to its moment, and is the only way once GC has removed the beginning
of the log. `auto` takes the newest one below the export's directory that can be used at all; what a
single table needs is looked at when the schema is known (`built_on.carry`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from binlogd.errors import ConfigError, Refused, Unfit
from binlogd.settings.quantities import wall_clock
from binlogd.snapshot.bases.dump import is_dump, read_dump
from binlogd.snapshot.publishing.publish import read_manifest, snapshots, why_none
from binlogd.snapshot.spec import MANIFEST_FORMAT, PARQUET_KINDS, Manifest, TypeOptions
from binlogd.tso import NO_TS, Tso

AUTO, NONE = "auto", "none"


class UnusableBase(Unfit):
    """Why a snapshot, or a table of it, cannot be built on."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What an export asks of a base. `moment_ts` is NO_TS where it is not known yet, `zone` that of
    a dump's TIMESTAMPs where one is named."""

    moment_ts: Tso
    gone_ts: Tso
    cluster_id: int | None
    types: TypeOptions
    zone: str = ""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The base of an export; `directory` is None without one. `why` says how it came to that."""

    directory: Path | None
    commit_ts: Tso
    why: str


def choose(wanted: str, out: Path, needs: Needs) -> Chosen:
    """The base that `--base` means: `auto`, `none`, or a directory.

    Raises ConfigError for a directory that is no snapshot, Refused for one that cannot be used, and
    where none can be used but one is needed, or none would help.
    """
    if NO_TS < needs.moment_ts < needs.gone_ts:
        raise Refused(
            f"{needs.moment_ts} ({wall_clock(needs.moment_ts)}) is below {needs.gone_ts}"
            f" ({wall_clock(needs.gone_ts)}), up to where GC removed binlogs: only later moments"
            " can still be exported, built on a snapshot or a dump that is as new"
        )
    check_zone(wanted, needs.zone)
    if wanted == NONE:
        return _without("no base is wanted", needs)
    if wanted != AUTO:
        return _named(Path(wanted), needs)
    reasons = []
    for path, manifest in _snapshots(out):
        try:
            _check(manifest, needs)
        except UnusableBase as error:
            reasons.append(f"{path.name}: {error}")
        else:
            passed = f"; not {'; not '.join(reasons)}" if reasons else ""
            why = f"the newest snapshot in {out} that can be built on{passed}"
            return Chosen(path.absolute(), Tso(manifest.commit_ts), why)
    return _without("; ".join(reasons) or f"{out} has no snapshot yet", needs)


def check_zone(wanted: str, zone: str) -> None:
    """Raises ConfigError for a time zone of what has none: it would be passed over."""
    if zone and (wanted in (AUTO, NONE) or not is_dump(Path(wanted))):
        raise ConfigError(
            f"--base-time-zone: not with --base {wanted}, which is no Dumpling dump: a snapshot"
            " knows the zone of its TIMESTAMPs"
        )


def _without(why: str, needs: Needs) -> Chosen:
    if needs.gone_ts > NO_TS:
        raise Refused(
            f"GC removed the beginning of the log: it is complete behind {needs.gone_ts} only, so a"
            f" base with at least that commit_ts is needed, and there is none ({why}); name a"
            " snapshot or a Dumpling dump by --base"
        )
    return Chosen(None, NO_TS, why)


def _named(path: Path, needs: Needs) -> Chosen:
    try:
        if is_dump(path):
            commit_ts, why = read_dump(path).commit_ts, "named, a Dumpling dump"
            _check_moment(commit_ts, needs)
        else:
            manifest = read_manifest(path)
            commit_ts, why = Tso(manifest.commit_ts), "named"
            _check(manifest, needs)
    except (OSError, ValueError) as error:
        reason = why_none(path, error)
        raise ConfigError(f"--base {path}: no snapshot is there: {reason}") from error
    except UnusableBase as error:
        raise Refused(f"--base {path} cannot be built on: {error}") from error
    return Chosen(path.resolve(), commit_ts, why)


def _snapshots(out: Path) -> Iterator[tuple[Path, Manifest]]:
    """Newest first; one whose manifest does not read is passed over."""
    for path in snapshots(out):
        with suppress(OSError, ValueError):
            yield path, read_manifest(path)


def _check(manifest: Manifest, needs: Needs) -> None:
    if manifest.changes is not None:
        raise UnusableBase("it holds changes, no snapshot")
    if manifest.format != MANIFEST_FORMAT or manifest.schema is None:
        raise UnusableBase("an older binlogd wrote it, without what is needed to build on it")
    if manifest.data_format not in PARQUET_KINDS or manifest.layout != "plain":
        raise UnusableBase(f"its files are {manifest.data_format} in the {manifest.layout} layout")
    _check_moment(Tso(manifest.commit_ts), needs)
    clusters = manifest.cluster_id, needs.cluster_id
    if None not in clusters and clusters[0] != clusters[1]:
        raise UnusableBase(f"it is of cluster {clusters[0]}, the log of {clusters[1]}")
    if manifest.types != needs.types:
        raise UnusableBase("its types were chosen otherwise (--type)")


def _check_moment(commit_ts: Tso, needs: Needs) -> None:
    if needs.moment_ts and commit_ts > needs.moment_ts:
        raise UnusableBase(f"it is of {commit_ts}, later than the moment {needs.moment_ts}")
    if commit_ts < needs.gone_ts:
        raise UnusableBase(
            f"it is of {commit_ts}, and the log is complete behind {needs.gone_ts} only"
        )
