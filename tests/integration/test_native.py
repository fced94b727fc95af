"""The hot modules in their two forms: compiled by mypyc, and as they are written."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import tomllib
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from binlogd import native

ROOT = Path(__file__).parents[2]
COMPILED = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["binlogd"]["compiled"]
JUDGES = (
    "tests/unit/drainer/test_pb.py",
    "tests/unit/drainer/test_pb_rows.py",
    "tests/unit/drainer/test_translate.py",
    "tests/unit/log/test_record.py",
    "tests/unit/merge/test_merge.py",
    "tests/unit/pump/test_binlog_kinds.py",
    "tests/unit/pump/test_found.py",
    "tests/unit/pump/test_pump_decisions.py",
    "tests/unit/grpc",
    "tests/unit/wire",
    "tests/unit/tidb/test_jsonb.py",
    "tests/unit/tidb/test_row.py",
    "tests/unit/tidb/test_row_properties.py",
    "tests/unit/tidb/test_vectors.py",
)
"""Tests of the modules that are compiled; they import little else."""
NOT_TWICE = "not many_columns and not betterproto and not in_any_order"
"""What takes long and says little of a form."""
needs_compiled = pytest.mark.skipif(
    not native.is_compiled(), reason="nothing is compiled here: every test runs the plain form"
)


def _package(directory: Path) -> Path:
    """A package with a source, and a library that was made of it."""
    package = directory / "binlogd"
    package.mkdir()
    (package / "hot.py").write_text("FIRST = 1\n")
    (package / f"native__mypyc{EXTENSION_SUFFIXES[0]}").touch()
    record = native.record_of(directory, ["binlogd/hot.py"], ["binlogd/hot.py"])
    (package / native.RECORD).write_text(json.dumps(record))
    return package


def test_an_edited_source_is_not_passed_over_for_what_was_compiled_before(tmp_path: Path) -> None:
    package = _package(tmp_path)
    native.refuse_stale(package)
    (package / "hot.py").write_text("FIRST = 2\n")
    with pytest.raises(ImportError, match=r"hot\.py is not what was compiled: run `make compile`"):
        native.refuse_stale(package)


def test_a_source_that_went_is_seen_as_well(tmp_path: Path) -> None:
    package = _package(tmp_path)
    (package / "hot.py").unlink()
    with pytest.raises(ImportError, match="make uncompile"):
        native.refuse_stale(package)


def test_a_build_that_did_not_come_to_its_end_is_refused(tmp_path: Path) -> None:
    package = _package(tmp_path)
    (package / native.RECORD).unlink()
    with pytest.raises(ImportError, match="did not come to its end"):
        native.refuse_stale(package)


def test_without_what_was_compiled_the_sources_run(tmp_path: Path) -> None:
    package = _package(tmp_path)
    (package / "hot.py").write_text("FIRST = 2\n")
    native.remove(package)
    native.refuse_stale(package)
    assert not native.is_compiled(package)
    assert [path.name for path in package.iterdir()] == ["hot.py"]


def test_all_that_is_listed_runs_in_the_form_that_is_said() -> None:
    files = [import_module(name).__file__ or "" for name in COMPILED]
    expected = (*EXTENSION_SUFFIXES,) if native.is_compiled() else (".py",)
    assert [each for each in files if not each.endswith(expected)] == []


def test_no_frozen_dataclass_that_spark_may_pickle_is_compiled() -> None:
    """One that mypyc has compiled cannot be unpickled."""
    compiled = {
        (module, node.name)
        for module in COMPILED
        for node in ast.walk(_tree(ROOT / f"{module.replace('.', '/')}.py"))
        if isinstance(node, ast.ClassDef) and node.decorator_list
    }
    imported = {
        (node.module, each.name)
        for package in ("snapshot", "spark", "archive")
        for path in (ROOT / "binlogd" / package).rglob("*.py")
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.ImportFrom)
        for each in node.names
    }
    assert compiled & imported == set()


def test_no_coroutine_is_compiled() -> None:
    """mypyc's do not let go of their exceptions as Python's do (decision 147)."""
    found = {
        (module, node.name)
        for module in COMPILED
        for node in ast.walk(_tree(ROOT / f"{module.replace('.', '/')}.py"))
        if isinstance(node, ast.AsyncFunctionDef)
    }
    assert found == set()


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@needs_compiled
def test_the_plain_form_passes_the_same_tests(tmp_path: Path) -> None:
    for name in ("binlogd", "tests"):
        ignored = shutil.ignore_patterns("*.so", native.RECORD, "__pycache__")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"),
            *("-p", "no:xdist", "--hypothesis-profile", "brief", "-k", NOT_TWICE, *JUDGES),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
