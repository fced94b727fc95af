"""The example of docs/CLIENT.md runs as it stands there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.appliance import Appliance

ROOT = Path(__file__).parents[2]


def test_the_example_of_the_client_runs(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "CLIENT.md").read_text()
    program = text.split("```python\n")[1].split("```")[0]
    machine = Appliance(tmp_path, history=b"[]")
    machine.configure('[upstream]\nschema-history = "ddl_history.json"\n', 'node-id = "pump0"\n')
    try:
        machine.start()
        assert ", 8250)" in program
        answer = subprocess.run(
            [sys.executable, "-c", program.replace(", 8250)", f", {machine.port})")],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert answer.stdout == "pump0 2\n", answer.stderr
        machine.wait(lambda status: status["max_commit_ts"] == 442000000000000002)
        assert machine.stop() == 0
    finally:
        machine.close()
