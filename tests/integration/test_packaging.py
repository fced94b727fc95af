"""What is published, and what it is installed with: the locks."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())


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
