"""What `binlogd export` says to those who mistype: at once, with what to do; nothing is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.appliance import run


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "say where to: --out DIR"),
        (("--out", "o", "--data-dir", "nowhere"), "nowhere is no data directory"),
        (("--out", "o", "--data-dir", "."), "by --data-dir or the --config"),
        (("--out", "o", "--archive", "x", "--data-dir", "nowhere"), "there is no such directory"),
        (("--out", "s3://", "--data-dir", "."), "name a bucket: s3://bucket/prefix"),
        (("--out", "o", "--as-of", "yesterday"), "neither a TSO"),
        (("--out", "o", "--format", "delta", "--type", "time=interval"), "have no such type"),
        (("--out", "o", "--format", "csv", "--type", "json=variant"), "only plain Parquet"),
        (("--check", "o"), "o is no snapshot"),
        (("--check", "o", "--against", "localhost"), "expected mysql://user:password@host:port"),
        (("--check", "o", "--as-of", "latest-5m"), "there is `--as-of snapshot` only"),
        (("--check", "o", "--as-of", "snapshot"), "for the TiDB of --against"),
        (("--out", "o", "--data-dir", ".", "--wait", "5d"), "500ms, 30s, 10m or 1h30m"),
        (
            ("--out", "o", "--archive", "s3://b/a", "--schema-history", "h.json"),
            "--schema-history: an archive of segments has its own",
        ),
    ],
    ids=range(14),
)
def test_a_mistake_is_told_before_anything_is_made(
    words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    done = run(tmp_path, "export", *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_changes_that_end_before_they_begin_are_refused(tmp_path: Path) -> None:
    done = run(tmp_path, "export-changes", "--out", "o", "--from", "9", "--to", "4")
    assert done.returncode == 2
    assert "--from 9 lies behind --to 4" in done.stderr
