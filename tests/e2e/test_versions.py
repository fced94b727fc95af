"""Versions of binlogd that take turns at one data directory, one replica and one lake: what each
writes, the others read.

What docs/howto/upgrade.md promises, both ways, with a kill -9 between the two. The older versions
come out of the history of this repository.
"""

from __future__ import annotations

import asyncio
import io
import json
import random
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.e2e.test_recordings_end_to_end import (
    RECORDINGS,
    expect_equal,
    expect_equal_replica,
    ignoring,
)
from tests.support.appliance import Appliance, environment, into_mariadb, killed_at_random
from tests.support.mariadb import MariaDb
from tests.support.program import ROOT
from tests.support.recordings_reader import history
from tests.workload.recording import feed_recording, payloads

OLDER = ("a8d189a0", "0a18896c", "57c32507")
"""Of 2026-11-23, 27 and 28."""


class Changing(Appliance):
    """Each start is one of another version, as chance has it."""

    def versions(self, older: str, seed: int) -> None:
        """From now on it is this one, or what stands here."""
        whole = subprocess.run(
            ("git", "-C", ROOT, "archive", older, "binlogd"), stdout=subprocess.PIPE, check=True
        ).stdout
        with tarfile.open(fileobj=io.BytesIO(whole)) as archive:
            archive.extractall(self.directory / older, filter="data")
        self.roots: Sequence[Path] = (ROOT, self.directory / older)
        self._rng = random.Random(seed)

    def launched(self) -> subprocess.Popen[bytes]:
        """The command itself: the process that others are forked from has the code of today."""
        return self.command({"PYTHONPATH": str(self._rng.choice(self.roots))})

    def pipeline(self, lake: str) -> None:
        """The log into a lake of Delta, as far as it goes."""
        words = ("pipeline", "--source", self.data_dir, "--into", f"delta:{self.directory / lake}")
        more = ("--checkpoint", self.directory / f"{lake}-checkpoint", "--config", self.config_file)
        root = str(self._rng.choice(self.roots))
        done = subprocess.run(
            (sys.executable, "-m", "binlogd", *words, *more),
            cwd=self.directory,
            env={**environment(), "PYTHONPATH": root},
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]

    def feed(self, name: str, seed: int) -> None:
        """A recording, into one version after the other; the last one stays that of today."""
        self.start()
        with killed_at_random(self, seed, kills=6, every_s=(0.3, 1.2)):
            asyncio.run(feed_recording(RECORDINGS / name, self.target))
        self.kill()
        self.roots = (ROOT,)
        self.start()
        # what the lives before have applied is walked again: until then, no stop is consistent
        self.wait(lambda status: status["drainer"]["resolved_ts"] >= status["max_commit_ts"])


@pytest.mark.soak  # in short: the formats are held byte by byte, by tests of their own
@pytest.mark.parametrize("older", OLDER)
@pytest.mark.parametrize("name", ["types", "keys", "ddl", "mixed"])
def test_versions_take_turns(name: str, older: str, tmp_path: Path, mariadb: MariaDb) -> None:
    appliance = Changing(
        tmp_path,
        history=history(RECORDINGS / name),
        syncer=into_mariadb(mariadb, extra=ignoring(name)),
    )
    appliance.versions(older, seed=len(name))
    try:
        appliance.feed(name, seed=1)
        expect_equal(name, appliance, mariadb)
    finally:
        appliance.close()


@pytest.mark.soak  # as above
@pytest.mark.parametrize("older", OLDER)
def test_versions_take_turns_at_a_replica_in_one_file(older: str, tmp_path: Path) -> None:
    appliance = Changing(
        tmp_path, history=history(RECORDINGS / "keys"), syncer='[syncer]\ndb-type = "sqlite"\n'
    )
    appliance.versions(older, seed=5)
    try:
        appliance.feed("keys", seed=2)
        expect_equal_replica(appliance)
    finally:
        appliance.close()


@pytest.mark.soak  # in short: test_lake_files, how texts lie in files
@pytest.mark.parametrize("older", OLDER)
@pytest.mark.parametrize("name", ["keys", "mixed"])
def test_a_lake_goes_on_where_an_older_version_left_it(
    name: str, older: str, tmp_path: Path
) -> None:
    appliance = Changing(
        tmp_path, history=history(RECORDINGS / name), syncer='[syncer]\ndb-type = "file"\n'
    )
    appliance.versions(older, seed=0)
    count = sum(1 for _ in payloads(RECORDINGS / name))
    try:
        for root, first in zip(reversed(appliance.roots), (count // 2, None), strict=True):
            appliance.roots = (root,)
            appliance.start()
            asyncio.run(feed_recording(RECORDINGS / name, appliance.target, first=first))
            assert appliance.stop() == 0
            appliance.pipeline("lake")
    finally:
        appliance.close()
    appliance.pipeline("whole")
    assert rows_of(tmp_path / "lake") == rows_of(tmp_path / "whole")


def rows_of(lake: Path) -> dict[str, list[str]]:
    """By table, in order."""
    tables = json.loads((lake / "tables.json").read_text())["tables"]
    found = {}
    for name, of in tables.items():
        table = DeltaTable(lake / of["directory"], version=of["version"]).to_pyarrow_table()
        rows = table.select(sorted(table.column_names)).to_pylist()
        found[name] = sorted(map(repr, rows))
    return found
