"""The status of a node that is well, but for what is given; and a look-up that found nothing."""

from __future__ import annotations

from typing import Any

from binlogd.serving.answers import LookUp
from binlogd.status import DrainerStatus, SavedCheckpoint, Status, UpstreamStatus
from binlogd.tso import Tso

NOTHING_FOUND = LookUp(transactions=[], records=[], looked_from=None, looked_to=None, complete=True)


def drainer(**changes: Any) -> DrainerStatus:
    """One that runs."""
    return DrainerStatus(**{"state": "running", "node_state": "online", **changes})


def well(**changes: Any) -> Status:
    """A node with both halves."""
    well: dict[str, Any] = {
        "state": "online",
        "node_id": "n:8250",
        "roles": ["pump", "drainer"],
        "cluster_id": 7,
        "version": "0.1.0",
        "form": "plain",
        "uptime_s": 12.0,
        "max_commit_ts": Tso(50),
        "newest_commit_ts": Tso(50),
        "checkpoint": SavedCheckpoint(Tso(40)),
        "lag_s": 0.0,
        "drainer": drainer(),
        "upstream": UpstreamStatus(kind="standalone"),
        "open_addr": "",
        "archive": None,
        "exports": None,
        "stuck_parts": [],
        "registry_error": "",
        "log_error": "",
        "free_bytes": 50,
        "capacity_bytes": 100,
    }
    return Status(**{**well, **changes})
