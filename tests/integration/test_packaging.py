"""What is published, and what it is installed with: the locks."""

from __future__ import annotations

import re
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from binlogd.native import RECORD
from tests.support.packages import PROJECT, ROOT, check_program, installed, run, sdist, wheel
from tests.support.pythons import VERSIONS, interpreter


def lock(name: str) -> dict[str, str]:
    """Package to version, of a file of `locks/`; each line of it is one or is a hash."""
    found: dict[str, str] = {}
    for entry in (ROOT / "locks" / f"{name}.txt").read_text().replace("\\\n", " ").splitlines():
        pinned, *hashes = re.split(r"\s+--hash=sha256:", entry)
        assert hashes, f"{entry}: no hash"
        assert all(re.fullmatch("[0-9a-f]{64}", each.strip()) for each in hashes), entry
        package, _, version = pinned.partition(";")[0].strip().partition("==")
        found[package] = version
    return found


def asked(group: str) -> Iterator[Requirement]:
    """Of a dependency group, with those that it includes."""
    for each in PROJECT["dependency-groups"][group]:
        if isinstance(each, dict):
            yield from asked(each["include-group"])
        else:
            yield Requirement(each)


def test_the_locks_are_parts_of_one_and_have_what_is_asked_for() -> None:
    largest = lock("test")
    project = PROJECT["project"]
    run = [Requirement(each) for each in project["dependencies"]]
    extras = [Requirement(each) for of in project["optional-dependencies"].values() for each in of]
    wanted = {
        "run": run,
        "extras": run + extras,
        "build": list(asked("build")),
        "test": run + extras + list(asked("dev")),
    }
    assert {path.stem for path in (ROOT / "locks").iterdir()} == set(wanted)
    for name, requirements in wanted.items():
        locked = lock(name)
        assert locked.items() <= largest.items(), f"{name}: `make lock` makes them in one"
        for each in requirements:
            version = locked[canonicalize_name(each.name)]
            assert each.specifier.contains(version, prereleases=True), f"{each}: `make lock`"


@pytest.mark.soak
def test_a_wheel_made_from_the_sdist_installs_and_serves(tmp_path: Path) -> None:
    source = sdist(tmp_path)
    with tarfile.open(source) as archive:
        packed = {each.partition("/")[2] for each in archive.getnames()}
    product = [path for path in (ROOT / "binlogd").rglob("*") if path.is_file()]
    made_here = {".so", ".pyc"}
    in_repository = {
        str(path.relative_to(ROOT))
        for path in product
        if path.suffix not in made_here and path.name != RECORD
    }
    assert in_repository <= packed
    beside = {"pyproject.toml", "setup.py", "LICENSE", "README.md", "CHANGELOG.md", "locks/run.txt"}
    beside |= {"config/binlogd.toml", "deploy/binlogd.service", "deploy/helm/binlogd/Chart.yaml"}
    assert beside <= packed
    assert not [each for each in packed if each.startswith(("tests", "docs", "build"))]
    assert not [each for each in packed if each.endswith((".so", "native.json", ".pyc"))]

    package = wheel(source, tmp_path)
    assert package.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(package) as archive:
        shipped = set(archive.namelist())
        said = archive.read(next(each for each in shipped if each.endswith("METADATA"))).decode()
    spark = "binlogd/spark/pyspark_binlogd/"
    assert {each for each in in_repository if spark not in each} <= shipped
    tops = {each.partition("/")[0] for each in shipped}
    assert tops == {"binlogd", "pyspark_binlogd", f"{package.name.rsplit('-', 3)[0]}.dist-info"}
    assert "\nLicense-Expression: Apache-2.0\n" in said
    assert "\nLicense-File: LICENSE\n" in said

    check_program(installed(package, tmp_path), tmp_path)


def test_every_python_that_is_named_is_tried_and_has_a_compiled_wheel() -> None:
    prefix = "Programming Language :: Python :: 3."
    named = [each for each in PROJECT["project"]["classifiers"] if each.startswith(prefix)]
    assert [each.rpartition(" ")[2] for each in named] == list(VERSIONS)
    recipe = PROJECT["tool"]["cibuildwheel"]["build"]
    assert recipe == [f"cp{each.replace('.', '')}-*" for each in VERSIONS]


@pytest.mark.soak
@pytest.mark.parametrize("version", VERSIONS)
def test_the_lock_the_wheel_and_the_sdist_install_and_serve(version: str, tmp_path: Path) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} here, nor in Debian unstable")
    source = sdist(tmp_path)
    uv = Path(sys.executable).with_name("uv")
    for package in (wheel(source, tmp_path), source):
        made = tmp_path / package.suffix
        run(uv, "venv", "--quiet", "--python", python, made, cwd=tmp_path)
        install = (uv, "pip", "install", "--quiet", "--python", made / "bin" / "python")
        run(*install, "--require-hashes", "--requirement", ROOT / "locks" / "run.txt", cwd=tmp_path)
        run(*install, "--no-deps", package, cwd=tmp_path)
        said = run(made / "bin" / "python", "-V", cwd=tmp_path)
        assert said.startswith(f"Python {version}.")
        check_program(made / "bin", tmp_path)
