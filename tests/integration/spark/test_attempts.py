"""Two attempts of one task make versions of a lake's table, in every order of their steps.

A scheduler that speculates, or that gives a lost executor's task to another while the lost one
lives, runs a task twice at a time. What either of them reports must be what it made.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from binlogd.errors import ConfigError
from binlogd.host.clock import WallClock
from binlogd.spark.lake import delta, iceberg
from binlogd.spark.lake.iceberg import Versions
from binlogd.spark.lake.kinds import LakeFailed
from binlogd.spark.lake.manifest import LakeTable
from binlogd.spark.lake.moving import Lake
from binlogd.spark.lake.place import KINDS, place_of
from binlogd.spark.lake.rows import KEY_COLUMN, KeyChanges
from binlogd.spark.submit import check_speculation
from tests.support.lakes import GATED

ID = {b"PARQUET:field_id": b"1"}
KEY = {b"PARQUET:field_id": b"2147483000"}
SCHEMA = pa.schema(
    [
        pa.field("v", pa.int64(), metadata=ID),
        pa.field(KEY_COLUMN, pa.binary(), nullable=False, metadata=KEY),
    ]
)
DEADLINE_S = 60
"""Of one step; a test that waits so long has failed."""
SWITCHES = 2
"""From an attempt that could go on to the other one, in the short form: nearly all races need no
more (Musuvathi and Qadeer, PLDI 2007). The long form has every order."""


class Attempt(threading.Thread):
    """One attempt: it waits before each step until it is told to go on."""

    def __init__(self, work: Callable[[], LakeTable]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._go, self._there = threading.Semaphore(0), threading.Semaphore(0)
        self.head: LakeTable | None = None
        self.error: Exception | None = None
        self.is_done = False

    def run(self) -> None:
        self._go.acquire()
        try:
            self.head = self._work()
        except Exception as error:  # noqa: BLE001 - told by whoever looks at the attempt
            self.error = error
        self.is_done = True
        self._there.release()

    def pause(self) -> None:
        self._there.release()
        assert self._go.acquire(timeout=DEADLINE_S)

    def go_on(self) -> None:
        self._go.release()
        assert self._there.acquire(timeout=DEADLINE_S)


def step() -> None:
    current = threading.current_thread()
    if isinstance(current, Attempt):
        current.pause()


def interleaved(
    work: Callable[[], Callable[[], LakeTable]], switches_max: int | None
) -> Iterator[list[Attempt]]:
    """Two attempts at the same, after each order in which their steps may come, or those with so
    many switches. The first one begins: which of the two is called that makes no other order."""
    order: list[int] = []
    while True:  # ends when the second choice of all has no alternative left
        same = work()
        attempts = [Attempt(same), Attempt(same)]  # the one at work comes first
        for attempt in attempts:
            attempt.start()
        choices: list[tuple[int, int]] = []  # 1 is a switch
        while alive := [attempt for attempt in attempts if not attempt.is_done]:
            is_bound = not choices or sum(each for each, _ in choices) == switches_max
            chosen = order[len(choices)] if len(choices) < len(order) else 0
            choices.append((chosen, 1 if is_bound else len(alive)))
            if chosen:
                attempts.reverse()
            alive[chosen].go_on()
        yield attempts
        while choices and choices[-1][0] + 1 >= choices[-1][1]:
            choices.pop()
        if not choices:
            return
        order = [chosen for chosen, _ in choices]
        order[-1] += 1


class SteppedTable(DeltaTable):
    """Before it looks, and before it commits, another attempt may do something."""

    def __init__(self, *words: Any, **more: Any) -> None:
        step()
        super().__init__(*words, **more)

    def restore(self, *words: Any, **more: Any) -> Any:
        step()
        return super().restore(*words, **more)

    def create_write_transaction(self, *words: Any, **more: Any) -> Any:
        step()
        return super().create_write_transaction(*words, **more)


@pytest.fixture
def _in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    def before(owner: Any, name: str) -> None:
        known = getattr(owner, name)

        def stepped(*words: Any, **more: Any) -> Any:
            step()
            return known(*words, **more)

        monkeypatch.setattr(owner, name, stepped)

    monkeypatch.setattr(delta, "DeltaTable", SteppedTable)
    before(Versions, "opened")
    before(Versions, "commit_table")


def rows(**values: int) -> pa.Table:
    columns = [list(values.values()), [key.encode() for key in values]]
    return pa.Table.from_arrays(list(map(pa.array, columns, SCHEMA.types)), schema=SCHEMA)


def changes(pieces: int) -> Iterator[KeyChanges]:
    """In one piece, or as if they were larger than memory in two."""
    first, second = (rows(a=2, c=3), rows(d=4)) if pieces > 1 else (rows(a=2, c=3, d=4), None)
    yield KeyChanges(first, pa.array([b"b"], pa.binary()))
    if second is not None:
        yield KeyChanges(second, pa.array([], pa.binary()))


BEFORE, AFTER = {b"a": 1, b"b": 1}, {b"a": 2, b"c": 3, b"d": 4}


def held(lake: Lake, head: LakeTable) -> dict[bytes, int]:
    content = lake.content()
    found = [each for batch in content.read(head, SCHEMA) for each in batch.to_pylist()]
    assert len({each[KEY_COLUMN] for each in found}) == len(found)
    return {each[KEY_COLUMN]: each["v"] for each in found}


def seeded(lake: Lake, directory: str) -> LakeTable:
    content = lake.content()
    head = content.kind.create(LakeTable(1, directory, 0), SCHEMA, "d.t", 5)
    return content.append(head, SCHEMA, rows(a=1, b=1).to_batches(), 5)


def merged(lake: Lake, head: LakeTable, pieces: int) -> LakeTable:
    content = lake.content()
    return content.merge(head, SCHEMA, changes(pieces), 6)


@pytest.fixture(params=KINDS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(place_of(f"{request.param}:{tmp_path / 'lake'}"))


def check(
    lake: Lake,
    work: Callable[[], Callable[[], LakeTable]],
    expected: dict[bytes, int],
    switches_max: int | None,
) -> None:
    """Two attempts in every order of so many switches, and a third one behind them."""
    third: list[Callable[[], LakeTable]] = []

    def begun() -> Callable[[], LakeTable]:
        third[:] = [work()]
        return third[0]

    orders = reported = 0
    for attempts in interleaved(begun, switches_max):
        orders += 1
        for each in attempts:
            if each.error is not None and not isinstance(each.error, LakeFailed):
                raise each.error
            if each.head is not None:
                assert held(lake, each.head) == expected
                reported += 1
        assert held(lake, third[0]()) == expected
    assert reported >= orders > 5


@pytest.mark.usefixtures("_in_steps")
@pytest.mark.parametrize(
    ("pieces", "switches_max"),
    [(1, SWITCHES), *(pytest.param(n, None, marks=pytest.mark.soak) for n in (1, 2))],
)
@pytest.mark.parametrize("lake", GATED, indirect=True)
def test_a_merge_reports_the_version_that_it_made_whatever_another_attempt_does(
    lake: Lake, pieces: int, switches_max: int | None
) -> None:
    numbers = count(1)

    def work() -> Callable[[], LakeTable]:
        head = seeded(lake, f"table-{next(numbers)}")
        return lambda: merged(lake, head, pieces)

    check(lake, work, AFTER, switches_max)


@pytest.mark.usefixtures("_in_steps")
@pytest.mark.parametrize("lake", GATED, indirect=True)
@pytest.mark.parametrize("switches_max", [SWITCHES, pytest.param(None, marks=pytest.mark.soak)])
def test_files_are_in_a_table_once_whatever_another_attempt_does(
    lake: Lake, switches_max: int | None
) -> None:
    numbers = count(1)

    def work() -> Callable[[], LakeTable]:
        head = seeded(lake, f"table-{next(numbers)}")
        system, path = lake.place.filesystem(head.directory)
        pq.write_table(rows(c=3), f"{path}/new.parquet", filesystem=system)

        def append() -> LakeTable:
            kind = lake.kind()
            return kind.replace(head, SCHEMA, [], ["new.parquet"], 6)

        return append

    check(lake, work, {b"a": 1, b"b": 1, b"c": 3}, switches_max)


@pytest.mark.usefixtures("_in_steps")
@pytest.mark.parametrize("lake", GATED, indirect=True)
@pytest.mark.parametrize("switches_max", [SWITCHES, pytest.param(None, marks=pytest.mark.soak)])
def test_a_table_that_two_attempts_begin_has_its_rows_once(
    lake: Lake, switches_max: int | None
) -> None:
    numbers = count(1)

    def work() -> Callable[[], LakeTable]:
        name = f"table-{next(numbers)}"
        return lambda: seeded(lake, name)

    check(lake, work, BEFORE, switches_max)


def test_files_of_an_attempt_that_never_committed_are_removed_when_they_are_old(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version that can still be read keeps its files, however old they are. Of Delta, whose batch
    may be several versions, none of them has to be the second one by itself."""
    monkeypatch.setattr(delta, "TIDY_EVERY", 2)
    monkeypatch.setattr(iceberg, "TIDY_EVERY", 2)
    head = seeded(lake, "table-1")
    directory = Path(lake.place.table(head.directory))
    left, young = directory / "left.parquet", directory / "young.parquet"
    for file in (left, young):
        file.write_bytes(b"rows that nobody was told of")
    long_ago = WallClock().wall_ms() / 1000 - 10 * 86_400
    for file in directory.rglob("*.parquet"):
        if file != young:
            os.utime(file, (long_ago, long_ago))
    after = merged(lake, head, 2)
    assert (left.exists(), young.exists()) == (False, True)
    assert (held(lake, head), held(lake, after)) == (BEFORE, AFTER)


def test_the_version_before_a_batch_outlives_its_tidying_however_old_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tables.json` names it until the batch has ended, and who is killed before begins with it."""
    monkeypatch.setattr(iceberg, "TIDY_EVERY", 1)
    monkeypatch.setattr(iceberg, "SNAPSHOT_AGE", timedelta(0))
    lake = Lake(place_of(f"iceberg:{tmp_path / 'lake'}"))
    head = seeded(lake, "table-1")
    content = lake.content()  # a batch that makes two versions
    files = content.files(head).written(SCHEMA, rows(e=5).to_batches())
    anew = content.kind.rewrite(head, SCHEMA, files, 6)
    content.merge(anew, SCHEMA, changes(1), 6)
    assert held(lake, head) == BEFORE
    assert held(lake, merged(lake, head, 1)) == AFTER


def test_a_spark_that_speculates_is_refused_with_what_to_do() -> None:
    check_speculation({})
    with pytest.raises(ConfigError, match=r"--conf spark\.speculation=false"):
        check_speculation({"spark.speculation": "true"})
