"""What a command imports before it does anything: no running node, where it needs none."""

from __future__ import annotations

import subprocess
import sys

from binlogd.cli import COMMANDS

RUNS_A_NODE = {"serve", "restore"}
_LOOK = """
import sys
from binlogd.cli import command_line

for name in sys.argv[1:]:
    command_line([name])
print([each for each in ("binlogd.app", "pyspark", "pyarrow") if each in sys.modules])
"""


def test_no_command_imports_the_service_or_spark_before_it_needs_them() -> None:
    names = sorted(COMMANDS.keys() - RUNS_A_NODE)
    looked = subprocess.run(
        [sys.executable, "-c", _LOOK, *names], capture_output=True, text=True, check=True
    )
    assert looked.stdout.strip() == "[]"
