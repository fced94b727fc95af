"""The plain manifest for Kubernetes, which is the chart with its own values.

`make manifests` writes it with Helm's engine (tests/interop/deployment). Its head has a hash of the
chart and of what was made, so that a machine without Go sees when one of the two was changed alone.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from tests.support.deployment import DEPLOY
from tests.support.go_programs import built

CHART = DEPLOY / "helm" / "binlogd"
MANIFEST = DEPLOY / "kubernetes.yaml"
HEAD = """\
# One binlogd beside a TiDB cluster, into a MySQL where grants.sql was run.
# Fill in the addresses, then:
#
#   kubectl create secret generic binlogd --from-file=replica-password   # of its user there
#   kubectl apply --filename deploy/kubernetes.yaml
#   kubectl rollout status statefulset/binlogd
#   kubectl exec binlogd-0 -- binlogd status
#
# The chart of helm/binlogd with its own values, written by `make manifests`: change it there.
# sha256 of both: {stamp}
"""


def program(directory: Path) -> Path:
    """What reads charts, manifests and compose files, compiled into `directory`."""
    return built("deployment", directory, "-trimpath")


def run(command: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """What it says of them; its exit code is 1 where it refuses them."""
    return subprocess.run([command, *words], capture_output=True, text=True, check=False)


def rendered(command: Path, directory: Path, values: object = None) -> str:
    """The chart's documents with these values beside its own, for a release called binlogd."""
    file = directory / "values.yaml"
    file.write_text(yaml.safe_dump(values or {}))
    done = run(command, "render", CHART, file)
    assert done.returncode == 0, done.stderr
    return "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())


def manifest(body: str) -> str:
    """The file: how it is used, the hash, the documents."""
    digest = hashlib.sha256(body.encode())
    for path in sorted(path for path in CHART.rglob("*") if path.is_file()):
        digest.update(path.relative_to(CHART).as_posix().encode() + path.read_bytes())
    return HEAD.format(stamp=digest.hexdigest()) + body


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        MANIFEST.write_text(manifest(rendered(program(Path(made)), Path(made))))
    sys.stdout.write(f"{MANIFEST}\n")
