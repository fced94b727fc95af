"""Which snapshot an export builds on, and what it says of those that it does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from binlogd.errors import ConfigError, Refused
from binlogd.snapshot.bases.choice import AUTO, NONE, Needs, choose
from binlogd.snapshot.check import opened
from binlogd.snapshot.estimate import listing
from binlogd.snapshot.publishing.publish import publish
from binlogd.snapshot.spec import MANIFEST_NAME, FileEntry, Manifest, TypeOptions
from binlogd.tso import NO_TS, Tso
from tests.support import dumps
from tests.support.snapshots import manifest

SCHEMA = FileEntry("_schema.json", 0, 2, "")
NEEDS = Needs(moment_ts=NO_TS, gone_ts=NO_TS, cluster_id=7, types=TypeOptions())


def put(out: Path, commit_ts: int, **changed: object) -> Path:
    found: Manifest = msgspec.structs.replace(manifest(commit_ts), **{"schema": SCHEMA, **changed})
    staged = out / f"staged-{commit_ts}"
    staged.mkdir(parents=True)
    return publish(staged, out, found)


def test_the_newest_snapshot_that_can_be_used_is_taken(tmp_path: Path) -> None:
    assert choose(AUTO, tmp_path, NEEDS).directory is None
    put(tmp_path, 100)
    wanted = put(tmp_path, 200)
    put(tmp_path, 300, types=TypeOptions(time="string"))
    put(tmp_path, 400, cluster_id=8)
    put(tmp_path, 500, schema=None)
    put(tmp_path, 600)
    (tmp_path / "snapshot-700").mkdir()
    found = choose(AUTO, tmp_path, replace(NEEDS, moment_ts=Tso(550)))
    assert found.directory == wanted.absolute()
    assert found.commit_ts == 200
    for reason in (
        "snapshot-600: it is of 600, later than the moment 550",
        "snapshot-500: an older binlogd wrote it",
        "snapshot-400: it is of cluster 8, the log of 7",
        "snapshot-300: its types were chosen otherwise",
    ):
        assert reason in found.why
    assert choose(NONE, tmp_path, NEEDS).directory is None


def test_a_log_that_gc_cut_needs_a_base_that_is_new_enough(tmp_path: Path) -> None:
    put(tmp_path, 100)
    needs = replace(NEEDS, gone_ts=Tso(150))
    with pytest.raises(Refused, match="complete behind 150 only, so a base"):
        choose(AUTO, tmp_path, needs)
    with pytest.raises(Refused, match="no base is wanted"):
        choose(NONE, tmp_path, needs)
    put(tmp_path, 150)
    assert choose(AUTO, tmp_path, needs).commit_ts == 150
    for wanted in (AUTO, NONE, str(tmp_path / "snapshot-100")):
        with pytest.raises(Refused, match=r"^149 .* is below 150 .*, up to where GC removed"):
            choose(wanted, tmp_path, replace(needs, moment_ts=Tso(149)))


def test_a_base_that_is_named_must_be_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no snapshot is there"):
        choose(str(tmp_path), tmp_path, NEEDS)
    path = put(tmp_path, 100)
    with pytest.raises(ConfigError, match=r"no readable manifest.json .*/LATEST is the latest of"):
        choose(str(tmp_path), tmp_path, NEEDS)
    assert choose(str(path), tmp_path, NEEDS).why == "named"
    with pytest.raises(Refused, match="cannot be built on: it is of 100, later than"):
        choose(str(path), tmp_path, replace(NEEDS, moment_ts=Tso(50)))
    dump = tmp_path / "dump"
    dumps.write_metadata(dump, Tso(120))
    dumps.write_table(dump, ("a", "b"), (), [])
    assert choose(str(dump), tmp_path, NEEDS).commit_ts == 120
    with pytest.raises(Refused, match="complete behind 130 only"):
        choose(str(dump), tmp_path, replace(NEEDS, gone_ts=Tso(130)))


def test_a_time_zone_goes_with_a_dump_alone(tmp_path: Path) -> None:
    needs, dump = replace(NEEDS, zone="+08:00"), tmp_path / "dump"
    for wanted in (AUTO, NONE, str(put(tmp_path, 100))):
        with pytest.raises(
            ConfigError, match=r"^--base-time-zone: not with --base .*, which is no"
        ):
            choose(wanted, tmp_path, needs)
    dumps.write_metadata(dump, Tso(120))
    dumps.write_table(dump, ("a", "b"), (), [])
    assert choose(str(dump), tmp_path, needs).commit_ts == 120


@pytest.mark.parametrize("damaged", [b"{", b'{"version": "\xff"}', b'{"commit_ts": "a"}'])
def test_a_manifest_that_is_damaged_is_named_and_passed_over_where_nobody_named_it(
    tmp_path: Path, damaged: bytes
) -> None:
    path = put(tmp_path, 100)
    (path / MANIFEST_NAME).write_bytes(damaged)
    with pytest.raises(ConfigError, match=r"its manifest\.json does not decode"):
        choose(str(path), tmp_path, NEEDS)
    with pytest.raises(ConfigError, match=r"its manifest\.json does not decode"):
        opened(path)
    assert choose(AUTO, tmp_path, NEEDS).directory is None
    (listed,) = listing(tmp_path).exports
    assert listed.problem.startswith("manifest.json: ")
