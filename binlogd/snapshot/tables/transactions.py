"""What the heads of all binlogs tell: which moment is decided, and what lies before it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np

from binlogd.errors import Corrupt, CorruptRecord, MalformedBinlog, Refused
from binlogd.snapshot.log.datums import Longs, Mask, is_first
from binlogd.snapshot.log.events import Reads
from binlogd.snapshot.log.prewrites import (
    COMMIT,
    DDL_COMMIT,
    PREWRITE,
    ROLLBACK,
    DdlCommit,
    LogHeads,
)
from binlogd.snapshot.log.reader import payloads_at
from binlogd.snapshot.spec import ExportSpec, before_the_log
from binlogd.snapshot.tables.catalog import DdlBinlog
from binlogd.tso import Tso, plus_ms
from binlogd.wire.mutation import mutations_of
from binlogd.wire.peek import peek


def moment(log: LogHeads, spec: ExportSpec) -> tuple[Tso, Tso, Tso]:
    """Where the log begins, the commit_ts of the snapshot, and up to where the log is complete.

    Whatever commits at or below a commit_ts that lay in the log before its files were pinned had
    its prewrite acknowledged by then, so it is in the pinned files. A prewrite without an outcome
    commits above its start_ts, and above every commit_ts that lies before it in its own shard. What
    GC took lay there once as well: a quiet log may hold nothing that is as new as its base.

    Raises Refused.
    """
    is_seen = log.at < log.per_head([part.seen for part in log.parts])
    cap = max(spec.gone_ts, int(log.commit_ts[is_seen].max(initial=0)))
    floors = _floors(log)
    resolved = min(cap, int(floors.min())) if floors.size else cap
    resolved = Tso(max(resolved, min(spec.known_resolved_ts, cap)))
    resolved = max(resolved, Tso(min(spec.base_ts, cap)))
    commit_ts = chosen(spec, resolved)
    begins = Tso(int(log.start_ts[log.start_ts != 0].min()))
    check_begin(spec, begins, commit_ts)
    return begins, commit_ts, resolved


def chosen(spec: ExportSpec, resolved: Tso) -> Tso:
    """The commit_ts of the snapshot, of a log that is complete up to `resolved`. Raises Refused."""
    if resolved == 0:
        raise Refused("the log holds no committed transaction: there is nothing to export")
    if spec.as_of > max(resolved, spec.known_resolved_ts):
        raise Refused(
            f"--as-of {spec.as_of} is above {resolved}, up to where every transaction of the log"
            " is decided; export `latest`, or wait until the writers have come so far (--wait,"
            " where a binlogd runs)"
        )
    commit_ts = Tso(spec.as_of or plus_ms(resolved, -spec.before_latest_ms))
    if commit_ts < spec.base_ts:
        raise Refused(
            f"{commit_ts} lies before the base, {spec.base_ts}; name an older base by --base"
        )
    return commit_ts


def check_begin(spec: ExportSpec, begins: Tso, commit_ts: Tso) -> None:
    """Raises Refused for a moment before the first transaction of the log, and no base."""
    if commit_ts < begins and not spec.base:
        raise before_the_log(commit_ts, begins)


def _floors(log: LogHeads) -> Longs:
    """What the commit_ts of each prewrite without an outcome would be above."""
    is_fake = (log.kind == ROLLBACK) & (log.start_ts == log.commit_ts)
    outcomes = np.unique(log.start_ts[(log.kind != PREWRITE) & ~is_fake])
    is_open = log.kind == PREWRITE
    is_open[is_open] = ~_has(outcomes, log.start_ts[is_open])
    if not is_open.any():
        return np.zeros(0, np.int64)
    shard = log.per_head([part.shard for part in log.parts])
    found = []
    for each in np.unique(shard[is_open]):
        of_shard = shard == each
        seen = np.maximum.accumulate(np.append(0, log.commit_ts[of_shard]))[:-1]
        opened = is_open[of_shard]
        found.append(np.maximum(log.start_ts[of_shard][opened], seen[opened]))
    return np.concatenate(found)


def check_pairs(log: LogHeads, commit_ts: Tso, since_ts: Tso) -> None:
    """Every commit above `since_ts` has its prewrite, and a transaction one commit_ts.

    Raises Corrupt.
    """
    counts = (log.kind == COMMIT) | (log.kind == DDL_COMMIT)
    counts &= (log.commit_ts > since_ts) & (log.commit_ts <= commit_ts)
    start_ts, first, last = _extremes(log, counts)
    for each in np.flatnonzero(first != last)[:1].tolist():
        raise Corrupt(
            f"transaction {start_ts[each]} committed at {first[each]}: another Commit of it says"
            f" {last[each]}"
        )
    prewrites = np.unique(log.start_ts[log.kind == PREWRITE])
    for each in np.flatnonzero(~_has(prewrites, start_ts))[:1].tolist():
        raise Corrupt(
            f"transaction {start_ts[each]} committed at {first[each]}: the log does not hold its"
            " Prewrite"
        )


def ddl_binlogs(ddl: Iterable[DdlCommit], commit_ts: Tso) -> list[DdlBinlog]:
    """The DDL of a log that is committed at the moment, oldest first."""
    found = {
        (each.commit_ts, each.start_ts): DdlBinlog(
            Tso(each.commit_ts),
            each.job_id,
            each.schema_state,
            each.query.decode(errors="replace"),
        )
        for each in ddl
        if each.commit_ts <= commit_ts
    }
    return [found[key] for key in sorted(found)]


_LOOKED_AT = 64


def newest_version(log: LogHeads, before_ts: int) -> int:
    """The highest schema version of the last transactions with rows that began before a time; 0
    where there are none. Raises CorruptRecord."""
    numbers = np.flatnonzero((log.kind == PREWRITE) & (log.start_ts < before_ts))
    numbers = numbers[np.argsort(log.start_ts[numbers], kind="stable")][-_LOOKED_AT:]
    parts = np.searchsorted(log.begins, numbers, side="right") - 1
    newest = 0
    for part, at in zip(parts.tolist(), log.at[numbers].tolist(), strict=True):
        (payload,) = payloads_at(log.parts[part], [at])
        try:
            if not peek(payload).ddl_job_id:  # a DDL has no rows
                newest = max(newest, mutations_of(payload, lambda _: False)[0])
        except MalformedBinlog as error:
            path = log.parts[part].path
            raise CorruptRecord(path, at, f"no row changes: {error}") from error
    return newest


def reads(log: LogHeads, commit_ts: Tso, since_ts: Tso) -> list[Reads]:
    """Of each slice the prewrites of rows that were committed behind `since_ts`, up to the
    moment; of one that was sent again the first."""
    start_ts, first, _ = _extremes(log, (log.kind == COMMIT) & (log.commit_ts <= commit_ts))
    is_news = first > since_ts
    start_ts, first = start_ts[is_news], first[is_news]
    numbers = np.flatnonzero(log.kind == PREWRITE)
    numbers = numbers[_has(start_ts, log.start_ts[numbers])]
    _, once = np.unique(log.start_ts[numbers], return_index=True)
    numbers = numbers[np.sort(once)]
    at, of_prewrites = log.at[numbers], first[np.searchsorted(start_ts, log.start_ts[numbers])]
    bounds = np.searchsorted(numbers, log.begins).tolist()
    return [
        Reads(at[begin:end], of_prewrites[begin:end]) for begin, end in itertools.pairwise(bounds)
    ]


def _extremes(log: LogHeads, counts: Mask) -> tuple[Longs, Longs, Longs]:
    """Each start_ts of some heads, ascending, with the least and the largest commit_ts."""
    start_ts, commit_ts = log.start_ts[counts], log.commit_ts[counts]
    order = np.argsort(start_ts, kind="stable")
    start_ts, commit_ts = start_ts[order], commit_ts[order]
    begins = np.flatnonzero(is_first(start_ts))
    if not begins.size:
        return start_ts, commit_ts, commit_ts
    return (
        start_ts[begins],
        np.minimum.reduceat(commit_ts, begins),
        np.maximum.reduceat(commit_ts, begins),
    )


def _has(ascending: Longs, wanted: Longs) -> Mask:
    """Which numbers are among some."""
    if not ascending.size:
        return np.zeros(len(wanted), bool)
    places = np.searchsorted(ascending, wanted)
    places[places == len(ascending)] = 0
    found: Mask = ascending[places] == wanted
    return found
