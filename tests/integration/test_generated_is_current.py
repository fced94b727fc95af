"""What `make proto` writes is what is committed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

WIRE = Path(__file__).parents[2] / "binlogd" / "wire"


def _tree(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in sorted(root.rglob("*.py"))}


def test_the_generated_code_is_what_the_protos_say(tmp_path: Path) -> None:
    protos = sorted(str(path) for path in WIRE.glob("*.proto"))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"-I{WIRE}",
            f"--python_betterproto_out={tmp_path}",
            *protos,
        ],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert _tree(tmp_path) == _tree(WIRE / "generated"), "run `make proto` and commit the result"
