"""What to do when a store does not answer for a region.

| it says | then |
|---|---|
| another peer leads | ask that one, at once; PD, when they send on to each other |
| it does not lead, and knows no leader | ask PD, after a moment |
| the region is another one, or not here, or the store is another one | ask PD, at once |
| these are the regions now | believe it, and ask them at once |
| busy, disk full, in recovery | the same store again, after seconds |
| not ready yet | the same store again, after a moment |
| this cannot be asked | fail |
| no answer | ask PD where region and store are, after a moment |

While PD itself knows no leader, which is so for a minute after it has started, the peers are asked
in turn: one leads, or says who does.

"At once" is a few milliseconds the first time: who is told the same twice waits longer.

Source: tikv/client-go internal/locate/region_request.go, onRegionError; config/retry/config.go.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from binlogd.wire.generated import errorpb


@dataclass(frozen=True, slots=True)
class Wait:
    """Waits of `first_s`, twice that, up to `max_s`, each shortened by up to half."""

    kind: str
    first_s: float
    max_s: float


AT_ONCE = Wait("at_once", 0.002, 0.5)
LEADERLESS = Wait("leaderless", 0.1, 0.5)
NOT_READY = Wait("not_ready", 0.02, 1.0)
BUSY = Wait("busy", 2.0, 10.0)
SILENT = Wait("silent", 0.1, 2.0)
LOCKED = Wait("locked", 0.1, 1.0)
PLACES = Wait("places", 0.1, 2.0)
"""PD gives no answer."""


@dataclass(frozen=True, slots=True)
class Reaction:
    """What to forget, and how long to wait."""

    kind: str
    """The error's name as upstream has it, for metrics and errors."""
    wait: Wait
    forgets_region: bool = False
    forgets_store: bool = False


@dataclass(frozen=True, slots=True)
class Hopeless:
    """The question will never be answered."""

    kind: str
    reason: str


def _elsewhere(kind: str, wait: Wait = AT_ONCE, *, forgets_store: bool = False) -> Reaction:
    return Reaction(kind, wait, forgets_region=True, forgets_store=forgets_store)


_REACTIONS = {
    each.kind: each
    for each in (
        _elsewhere("not_leader", LEADERLESS),
        _elsewhere("epoch_not_match"),
        _elsewhere("region_not_found"),
        _elsewhere("key_not_in_region"),
        _elsewhere("mismatch_peer_id"),
        _elsewhere("is_witness"),
        _elsewhere("store_not_match", forgets_store=True),
        Reaction("server_is_busy", BUSY),
        Reaction("disk_full", BUSY),
        Reaction("recovery_in_progress", BUSY),
        Reaction("stale_command", NOT_READY),
        Reaction("proposal_in_merging_mode", NOT_READY),
        Reaction("region_not_initialized", NOT_READY),
        Reaction("data_is_not_ready", NOT_READY),
        Reaction("read_index_not_ready", NOT_READY),
        Reaction("max_timestamp_not_synced", NOT_READY),
    )
}
_OTHER_LEADER = Reaction("not_leader", AT_ONCE)
_UNKNOWN = _elsewhere("other", NOT_READY)
_HOPELESS = ("raft_entry_too_large", "flashback_in_progress", "flashback_not_prepared")


def react(error: errorpb.Error) -> Reaction | Hopeless:
    """The reaction to an error; one that is not known is asked again about, with PD's help."""
    for kind in _HOPELESS:
        if getattr(error, kind) is not None:
            return Hopeless(kind, error.message)
    if error.not_leader is not None and error.not_leader.leader is not None:
        return _OTHER_LEADER
    found = (each for kind, each in _REACTIONS.items() if getattr(error, kind) is not None)
    return next(found, _UNKNOWN)


@dataclass(slots=True)
class Patience:
    """The waits of one question; each kind grows by itself."""

    rng: Random
    attempts: int = 0
    reason: str = ""
    """Why the last attempt failed."""
    _counts: dict[str, int] = field(default_factory=dict)

    def count(self, wait: Wait) -> int:
        """How often it was waited so."""
        return self._counts.get(wait.kind, 0)

    def next_s(self, wait: Wait, reason: str) -> float:
        """How long to wait before the next attempt, in seconds."""
        count = self.count(wait)
        self._counts[wait.kind] = count + 1
        self.attempts += 1
        self.reason = reason
        longest = min(wait.max_s, wait.first_s * 2.0 ** min(count, 60))
        return longest * (1 - self.rng.random() / 2)
