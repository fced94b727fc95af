"""Random logs through every step of an export but Spark, held to a fold of the same changes."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from binlogd.errors import Refused
from binlogd.snapshot.log import packets
from binlogd.snapshot.log.packets import Spread, TooLargePiece
from binlogd.snapshot.process.jobdir import log_files
from binlogd.snapshot.publishing.publish import read_manifest
from binlogd.snapshot.spec import ChangesOptions
from binlogd.tso import NO_TS, Tso
from tests.support.data_directory import collect_garbage, write_log
from tests.support.folds import HISTORY, TABLES, Fold, random_fold, rows_of
from tests.support.plain_export import PlainExport

seeds = st.integers(0, 1 << 30)


def logged(fold: Fold, directory: Path, rng: Random) -> PlainExport:
    """The log in few or many files, read in few or many slices, spread one way or another."""
    data_dir, work = directory / "data", directory / "work"
    work.mkdir()
    segment_bytes = rng.choice([400, 4000, 1 << 20])
    write_log(data_dir, fold.payloads, shards=rng.choice([1, 3]), segment_bytes=segment_bytes)
    spread = Spread(rng.choice([1, 3]), rng.choice([1, 2]))
    return PlainExport(work, data_dir, HISTORY, spread, rng.choice([300, 1 << 20]))


def check_rows(snapshot: Path, fold: Fold, ts: int) -> None:
    for table_id in TABLES:
        assert rows_of(snapshot, table_id) == fold.rows(ts, table_id), TABLES[table_id].name


def check_snapshots(seed: int, directory: Path) -> None:
    """At several moments: of the whole log, and each on the one before, whose log is gone."""
    rng = Random(seed)
    fold = random_fold(seed, rng.randint(3, 60), rng.choice([3, 30]))
    exports = logged(fold, directory, rng)
    moments = sorted(rng.sample(sorted(fold.states), min(3, len(fold.states))))
    bases: list[Path | None] = [None]
    for ts in moments:
        check_rows(exports.snapshot(Tso(ts)), fold, ts)
    for ts in moments:
        snapshot = exports.snapshot(Tso(ts), bases[-1])
        check_rows(snapshot, fold, ts)
        bases.append(snapshot)
    last = max(fold.states)
    collect_garbage(exports.data_dir, Tso(moments[-1]))
    if not any(path.stat().st_size for _, _, path in log_files(exports.data_dir)):
        with pytest.raises(Refused, match="holds no binlogs"):
            exports.snapshot(NO_TS, bases[-1])
        return
    check_rows(exports.snapshot(NO_TS, bases[-1]), fold, last)


def check_changes(seed: int, directory: Path) -> None:
    rng = Random(seed)
    fold = random_fold(seed, rng.randint(3, 40), rng.choice([3, 20]))
    exports = logged(fold, directory, rng)
    first, last = sorted(rng.sample(sorted(fold.states), 2)) if len(fold.states) > 1 else (0, 0)
    if not first:
        return
    net = exports.changes(Tso(first), Tso(last), ChangesOptions(first, has_before=True))
    every = exports.changes(Tso(first), Tso(last), ChangesOptions(first, all_versions=True))
    for table_id in TABLES:
        held = fold.rows(first, table_id)
        for change in changes_in(net, table_id):
            _put(change, held)
        assert +held == fold.rows(last, table_id)
        assert min(held.values(), default=0) >= 0
        versions = changes_in(every, table_id)
        assert [(each["_op"], each["_commit_ts"]) for each in versions] == [
            told for told in fold.told[table_id] if first < told[1] <= last
        ]


def changes_in(directory: Path, table_id: int) -> list[dict[str, Any]]:
    found = [
        row
        for entry in read_manifest(directory).tables
        if entry.table_id == table_id
        for file in entry.files
        for row in pq.read_table(directory / file.name).to_pylist()
    ]
    return sorted(found, key=lambda each: (each["_commit_ts"], each.get("_seq", 0)))


def _put(change: dict[str, Any], held: Counter[tuple[Any, ...]]) -> None:
    if change["_op"] != "I":
        gone = tuple(change["_before"].values())
        held[gone] -= 1
    if change["_op"] != "D":
        held[change["a"], change["note"]] += 1


@pytest.fixture(scope="module")
def places() -> Iterator[Iterator[Path]]:
    """Directories where a sync costs nothing: a few exports make hundreds."""
    in_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with TemporaryDirectory(dir=in_memory) as place:

        def made() -> Iterator[Path]:
            for number in count():
                path = Path(place, str(number))
                path.mkdir()
                yield path
                shutil.rmtree(path)

        yield made()


@contextmanager
def folded_at(size: int, size_max: int) -> Iterator[None]:
    """As if so few bytes of changes were much in memory, and so few all there is room for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packets, "FOLD_BYTES", size)
        patch.setattr(packets, "BYTES_MAX", size_max)
        yield


@settings(max_examples=3)
@given(seed=seeds)
@example(seed=7475436)  # of whose log nothing is left that is as new as the base
@example(seed=1227)  # of whose log nothing is left at all
def test_snapshots_are_what_a_fold_gives(seed: int, places: Iterator[Path]) -> None:
    check_snapshots(seed, next(places))


@settings(max_examples=3)
@given(seed=seeds)
def test_changes_are_what_a_fold_gives(seed: int, places: Iterator[Path]) -> None:
    with folded_at(seed % 3_000, 1 << 20):
        check_changes(seed, next(places))


def test_of_a_key_that_was_written_ever_again_few_changes_are_held(
    places: Iterator[Path],
) -> None:
    fold, directory = Fold(), next(places)
    for note in range(600):
        fold.transact([(100, 1, note % 5 + 1), (100, note % 2, 1)], fate="commit")
    first, last = min(fold.states), max(fold.states)
    write_log(directory / "data", fold.payloads, segment_bytes=2_000)
    (directory / "work").mkdir()
    exports = PlainExport(directory / "work", directory / "data", HISTORY, Spread(1, 1), 2_000)
    options = ChangesOptions(first, has_before=True)
    with folded_at(1, 4_000):
        changes = exports.changes(Tso(first), Tso(last), options)
        held = fold.rows(first, 100)
        for change in changes_in(changes, 100):
            _put(change, held)
        assert +held == fold.rows(last, 100)
    told = r"s\.numbers: \d+ changes .* bytes, .* 100 bytes can be; take less"
    with folded_at(1, 100), pytest.raises(TooLargePiece, match=told):
        exports.changes(Tso(first), Tso(last), options)


@pytest.mark.soak
@settings(max_examples=700)
@given(seed=seeds)
def test_snapshots_and_changes_of_many_logs_are_what_a_fold_gives(
    seed: int, places: Iterator[Path]
) -> None:
    with folded_at(seed % 5_000, 1 << 20):
        check_snapshots(seed, next(places))
        check_changes(seed, next(places))
