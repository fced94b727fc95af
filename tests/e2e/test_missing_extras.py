"""Every command says which extra it lacks, and how to get it: nobody sees a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.packages import PROJECT

ROOT = Path(__file__).parents[2]
EXTRAS = {
    "pyspark",
    "pyarrow",
    "pandas",
    "numpy",
    "deltalake",
    "pyiceberg",
    "opentelemetry",
    "fastavro",
}
"""The modules of `project.optional-dependencies`; the test hides them from a child."""
_HIDING = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden())
from binlogd.cli import main
sys.argv = ["binlogd", *sys.argv[1:]]
main()
"""


def run(*words: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """The command where none of the extras is installed."""
    program = f"HIDDEN = {EXTRAS!r}\n{_HIDING}"
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PYTHONPATH": str(ROOT), "COLUMNS": "200", "PATH": "/usr/bin:/bin"},
    )


def test_the_extras_hidden_are_those_of_the_project() -> None:
    named = {
        requirement.partition(">")[0].partition("[")[0].partition("-")[0]
        for group in PROJECT["project"]["optional-dependencies"].values()
        for requirement in group
    }
    assert named == EXTRAS


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        ("pipeline --source data --into delta:lake --checkpoint point", "spark"),
        ("pipeline --package job", "spark"),
        ("export --data-dir data --out snapshots", "spark"),
        ("export --check data", "spark"),
        ("export-changes --data-dir data --out snapshots --from 1", "spark"),
        ("exports s3://bucket/snapshots", "spark"),
        ("archive s3://bucket/log --data-dir data", "archive"),
    ],
)
def test_a_command_names_the_extra_that_it_lacks(words: str, extra: str, tmp_path: Path) -> None:
    log = tmp_path / "data" / "pump" / "shard-0" / "value" / "000001.vlog"
    log.parent.mkdir(parents=True)
    log.touch()
    ended = run(*words.split(), directory=tmp_path)
    assert ended.returncode == 2, ended.stderr
    assert f"is not installed: `pip install 'binlogd[{extra}]'`" in ended.stderr
    assert "Traceback" not in ended.stderr
