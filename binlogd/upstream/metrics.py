"""How it stands with an upstream, for machines: metrics, and its part of `/status`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from binlogd.telemetry import Exposition
from binlogd.tso import physical_ms
from binlogd.upstream.upstream import TsoStatistics, UpstreamStatistics


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


def _say_tso(out: Exposition, tso: TsoStatistics) -> None:
    out.gauge("binlogd_upstream_tso", "The last timestamp that was told.", physical_ms(tso.last_ts))
    if tso.last_ts:
        out.gauge("binlogd_upstream_tso_age_seconds", "Since then.", tso.age_s)
    for name, meaning, count in (
        ("requests", "Requests for timestamps, each for all who waited.", tso.asked),
        ("slow", "Of those, slower than 30 ms.", tso.slow),
        ("errors", "Requests without a timestamp that can be taken.", tso.errors),
        ("went_back", "Timestamps refused, as earlier ones were later.", tso.went_back),
    ):
        out.counter(f"binlogd_upstream_tso_{name}", meaning, count)


def upstream_json(now: UpstreamStatistics) -> Mapping[str, Any]:
    """The key `upstream` of `/status`."""
    tso = now.tso
    return {
        "kind": now.kind,
        "parts": [asdict(part) for part in now.parts],
        "tso": None
        if tso is None
        else {
            "last_ts": tso.last_ts,
            "age_s": round(tso.age_s, 1) if tso.last_ts else None,
            "trouble": tso.trouble,
            "requests": tso.asked,
            "slow": tso.slow,
            "errors": tso.errors,
            "went_back": tso.went_back,
        },
    }
