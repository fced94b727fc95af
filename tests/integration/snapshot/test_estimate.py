"""What a dry run says of the time that an export would take."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from binlogd.errors import ConfigError
from binlogd.snapshot.estimate import CHANGES_PER_S, SECONDS_TO_LEARN_FROM, START_S, estimate
from binlogd.snapshot.export import ExportOptions
from binlogd.snapshot.publishing.publish import publish
from binlogd.snapshot.spec import BaseEntry, Manifest, SegmentEntry
from tests.support import recordings_reader
from tests.support.data_directory import write_log
from tests.support.snapshots import manifest

RECORDING = Path(__file__).parents[2] / "recordings" / "keys"


@pytest.fixture
def options(tmp_path: Path) -> ExportOptions:
    write_log(tmp_path / "data", (each.payload for each in recordings_reader.records(RECORDING)))
    return ExportOptions(
        data_dir=tmp_path / "data",
        out=tmp_path / "out",
        schema_history=recordings_reader.history(RECORDING),
    )


def put(out: Path, commit_ts: int, **changed: object) -> None:
    found: Manifest = msgspec.structs.replace(manifest(commit_ts), **changed)
    staged = out / "staged"
    staged.mkdir(parents=True)
    publish(staged, out, found)


def test_without_an_earlier_export_it_is_what_was_measured_on_so_many_cores(
    options: ExportOptions,
) -> None:
    for cores, rate in ((1, CHANGES_PER_S[0]), (2, CHANGES_PER_S[1]), (8, CHANGES_PER_S[1])):
        found = estimate(replace(options, cores=cores))
        assert found.seconds == round(START_S + found.changes / rate, 1)
        assert f"at {rate:,} changes/s, as measured on" in found.basis


def test_an_earlier_export_of_a_whole_log_tells_more(options: ExportOptions) -> None:
    slow = SECONDS_TO_LEARN_FROM + START_S
    size = estimate(options).log_bytes
    logs = (SegmentEntry(0, 0, size // 2), SegmentEntry(1, 0, size - size // 2))
    put(options.out, 10, log=logs, seconds=slow)
    put(options.out, 20, log=logs, seconds=900.0, base=BaseEntry("snapshot-10", 10))
    put(options.out, 30, log=logs, seconds=SECONDS_TO_LEARN_FROM / 2)
    found = estimate(options)
    assert found.seconds == slow
    assert found.basis.endswith("MB of log/s, as snapshot-10 was made)")


def test_a_time_zone_without_a_dump_is_refused_before_anything_is_looked_at(
    options: ExportOptions,
) -> None:
    with pytest.raises(ConfigError, match=r"^--base-time-zone: not with --base auto"):
        estimate(replace(options, base_time_zone="UTC"))
