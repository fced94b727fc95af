"""Manifests of snapshots that tests make by hand."""

from __future__ import annotations

from binlogd.snapshot.spec import Manifest, TableEntry


def manifest(commit_ts: int, *tables: TableEntry) -> Manifest:
    """A manifest of these tables."""
    return Manifest(
        binlogd_version="1",
        spark_version="4",
        cluster_id=7,
        commit_ts=commit_ts,
        time="",
        resolved_ts=commit_ts,
        log=(),
        tables=tables,
        left_out=(),
    )
