"""A start imports what its configuration asks for, and nothing for what others are."""

from __future__ import annotations

import subprocess
import sys

import pytest

OPTIONAL = {
    *("aiokafka", "aiomysql", "cramjam", "cryptography", "pymysql"),
    *("deltalake", "fastavro", "numpy", "opentelemetry"),
    *("pandas", "pyarrow", "pyiceberg", "pyspark"),
    *("prometheus_client", "pygments", "rich", "binlogd.exporting", "binlogd.snapshot"),
    *("binlogd.archive", "binlogd.node.pd_upstream", "binlogd.node.tidb_ports"),
    *("binlogd.upstream.pd.client", "binlogd.upstream.tikv", "binlogd.upstream.tidb"),
    *("binlogd.drainer.sqlite.sink", "binlogd.serving.routes.openapi"),
}
"""What a node on its defaults does without, by its modules: libraries, and parts of its own."""
DATACLASSES_MAX = 43
"""Of ours that a start makes. Each takes 1 ms of CPU, and a struct of msgspec 0.02 (0162)."""
_MADE = """
import dataclasses, sys
from binlogd.cli import command_line

command_line(["serve"])
print(
    *(
        f"{module}.{name}"
        for module in [each for each in sys.modules if each.startswith("binlogd.")]
        for name, one in vars(sys.modules[module]).items()
        if isinstance(one, type) and one.__module__ == module and ".generated" not in module
        if dataclasses.is_dataclass(one)
    )
)
"""
_PUT_TOGETHER = """
from types import SimpleNamespace as Some
from binlogd.cli import command_line

command_line(["serve"])
from binlogd.node.assembly import make_replication
from binlogd.settings.config import parse
from binlogd.settings.setup import Setup

setup = Setup(parse('''{text}''', "test"))
upstream = Some(
    cluster=Some(wait_known=None),
    tso=Some(observe=None),
    history=None,
    skips=Some(commit_tss=frozenset()),
    table_name=None,
    schema_at=None,
)
assert make_replication(lambda: setup, None, None, upstream, None, None) is not None
"""


def imported(code: str) -> set[str]:
    """Those of OPTIONAL that are there when this has run."""
    shown = f"{code}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", shown], check=True, capture_output=True, text=True)
    names = done.stdout.split()
    return OPTIONAL & {*names, *(name.partition(".")[0] for name in names)}


def test_a_node_that_writes_files_imports_no_library_of_another_downstream() -> None:
    assert imported(_PUT_TOGETHER.format(text="")) == set()


def test_a_start_makes_few_classes_that_are_compiled_from_text() -> None:
    done = subprocess.run([sys.executable, "-c", _MADE], check=True, capture_output=True, text=True)
    assert len(done.stdout.split()) <= DATACLASSES_MAX, done.stdout


@pytest.mark.parametrize(
    ("kind", "library"),
    [
        ("kafka", "aiokafka"),
        ("mysql", "aiomysql"),
        ("sqlite", "binlogd.drainer.sqlite.sink"),
    ],
)
def test_what_a_downstream_needs_is_there_before_the_node_serves(kind: str, library: str) -> None:
    assert library in imported(_PUT_TOGETHER.format(text=f'[syncer]\ndb-type = "{kind}"'))


def test_what_reads_certificates_is_there_before_the_node_serves() -> None:
    with_files = """
from pathlib import Path
from binlogd.host.certificates import Expiry
from binlogd.host.tls import TlsFiles
Expiry([{files}])
"""
    assert "cryptography" in imported(with_files.format(files='TlsFiles(Path("ca.pem"))'))
    assert imported(with_files.format(files="")) == set()
