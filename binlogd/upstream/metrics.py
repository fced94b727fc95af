"""How it stands with an upstream, for machines: metrics, and its part of `/status`."""

from __future__ import annotations

from dataclasses import asdict

from msgspec.structs import replace

from binlogd.status import TsoStatus, UpstreamStatus
from binlogd.telemetry.exposition import Exposition
from binlogd.tso import physical_ms
from binlogd.upstream.upstream import TikvKnowledge, UpstreamStatistics


def say_upstream(out: Exposition, now: UpstreamStatistics) -> None:
    """What was asked of others, and whether they answer; nothing where nobody is asked."""
    if now.parts:
        parts = [({"part": part.name}, part) for part in now.parts]
        out.gauge(
            "binlogd_upstream_up",
            "1 when it answers.",
            [(labels, 0 if part.trouble else 1) for labels, part in parts],
        )
        for name, meaning, counts in (
            ("requests", "Questions.", [part.requests for _, part in parts]),
            ("errors", "Tries without an answer.", [part.errors for _, part in parts]),
            ("leader_changes", "Leaders that moved.", [part.leader_changes for _, part in parts]),
        ):
            samples = [(labels, count) for (labels, _), count in zip(parts, counts, strict=True)]
            out.counter(f"binlogd_upstream_{name}", meaning, samples)
    if now.tso is not None:
        _say_tso(out, now.tso)
    if now.tikv is not None:
        _say_tikv(out, now.tikv)


def _say_tso(out: Exposition, tso: TsoStatus) -> None:
    out.gauge("binlogd_upstream_tso", "The last timestamp that was told.", physical_ms(tso.last_ts))
    if tso.last_ts:
        out.gauge("binlogd_upstream_tso_age_seconds", "Since then.", tso.age_s)
    for name, meaning, count in (
        ("requests", "Requests for timestamps, each for all who waited.", tso.requests),
        ("slow", "Of those, slower than 30 ms.", tso.slow),
        ("errors", "Requests without a timestamp that can be taken.", tso.errors),
        ("went_back", "Timestamps refused, as earlier ones were later.", tso.went_back),
    ):
        out.counter(f"binlogd_upstream_tso_{name}", meaning, count)


def _say_tikv(out: Exposition, now: TikvKnowledge) -> None:
    router, fates = now.client.router, now.fates
    for name, label, meaning, counts in (
        ("calls", "method", "Calls to stores.", router.calls),
        ("region_errors", "kind", "Stores that did not answer for a region.", router.region_errors),
        ("waits", "kind", "Waits before another try.", router.waits),
        ("wait_seconds", "kind", "Time of these waits.", router.waited_s),
        ("fates", "fate", "Answers about transactions without an outcome.", asdict(fates)),
    ):
        samples = [({label: key}, count) for key, count in sorted(counts.items())]
        out.counter(f"binlogd_upstream_tikv_{name}", meaning, samples)
    for name, meaning, count in (
        ("look_ups", "Questions to PD where a region is.", router.look_ups),
        ("locks_met", "Locks that a read waited for.", now.client.locks_met),
        ("locks_resolved", "Of those, left by who is gone, and ended.", now.client.locks_resolved),
        ("overdue", "Questions whose time ran out.", now.client.overdue),
    ):
        out.counter(f"binlogd_upstream_tikv_{name}", meaning, count)


def upstream_status(now: UpstreamStatistics) -> UpstreamStatus:
    """Its part of `/status`."""
    tso = now.tso
    if tso is not None and tso.age_s is not None:
        tso = replace(tso, age_s=round(tso.age_s, 1))
    return UpstreamStatus(
        kind=now.kind, parts=now.parts, tso=tso, tikv=None if now.tikv is None else asdict(now.tikv)
    )
