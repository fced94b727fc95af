"""Publishing is killed at every system call that changes a directory: old or new, never half."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from binlogd.snapshot.check import check
from binlogd.snapshot.publishing.publish import LATEST, read_manifest, snapshots
from tests.support.snapshots import Columns, snapshot

ROOT = Path(__file__).parents[3]
ROWS: Columns = [(1, "id", pa.array([1, 2, 3]))]
CALLS = ("rename", "fsync", "symlink")
PROGRAM = """
import sys
from pathlib import Path
import msgspec
from binlogd.snapshot.publishing.publish import publish, point_to_latest
from binlogd.snapshot.spec import Manifest
out, staged = Path(sys.argv[1]), Path(sys.argv[2])
manifest = msgspec.json.decode(Path(sys.argv[3]).read_bytes(), type=Manifest)
if staged.exists():
    publish(staged, out, manifest)
else:
    point_to_latest(out)
"""

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="no strace")


def run(words: list[str], kill: tuple[str, int] | None) -> int:
    inject = [f"--inject={kill[0]}:signal=KILL:when={kill[1]}"] if kill else []
    traced = ["strace", "-f", "-o", "/dev/null", f"--trace={','.join(CALLS)}", *inject]
    command = [*(traced if kill else []), sys.executable, "-c", PROGRAM, *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode


@pytest.mark.parametrize(
    "call",
    ["rename", *(pytest.param(each, marks=pytest.mark.soak) for each in ("fsync", "symlink"))],
)
def test_a_kill_leaves_the_old_snapshot_or_the_new_one(call: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    snapshot(out, 100, ROWS)
    made, described = snapshot(tmp_path / "other", 200, ROWS)
    text = tmp_path / "manifest.json"
    text.write_bytes((made / "manifest.json").read_bytes())
    (made / "manifest.json").unlink()
    staged = out / ".staging-1" / "snapshot"
    staged.parent.mkdir()
    kills, is_over = 0, False
    while not is_over:
        if not staged.exists():
            shutil.rmtree(out / "snapshot-200", ignore_errors=True)
            shutil.copytree(made, staged)
            (out / LATEST).unlink()
            (out / LATEST).symlink_to("snapshot-100")
        words = [str(out), str(staged), str(text)]
        is_over = run(words, (call, kills + 1)) == 0
        kills += not is_over
        there = [path.name for path in snapshots(out)]
        assert there in (["snapshot-100"], ["snapshot-200", "snapshot-100"])
        assert (out / LATEST).resolve().name in there
        for path in snapshots(out):
            assert [each.reason for each in check(path, read_manifest(path))] == [""]
        assert run(words, None) == 0  # goes on, or has nothing to do
        assert (out / LATEST).resolve().name == "snapshot-200"
        assert read_manifest(out / LATEST) == described
    assert kills >= 1
