"""Which binlogs of a log count: what was sent again, what lies at the edge of the moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from binlogd.errors import Corrupt
from binlogd.snapshot.log import reader
from binlogd.snapshot.log.events import WantedTables, committed_prewrites, events
from binlogd.snapshot.log.prewrites import LogHeads, heads
from binlogd.snapshot.log.rowkey import handle_of
from binlogd.snapshot.process.jobdir import pinned
from binlogd.snapshot.spec import ExportSpec, PinnedSegment
from binlogd.snapshot.tables.transactions import check_pairs, moment, reads
from binlogd.tidb.kinds import FLAG_NOT_NULL, FLAG_PRIMARY_KEY, Tp
from binlogd.tidb.model import Column, FieldType, Table
from binlogd.tidb.row import encode_insert
from binlogd.tso import NO_TS, Tso
from binlogd.wire.binlogs import commit_binlog, fake, prewrite_binlog, rollback_binlog
from binlogd.wire.mutation import Mutation, encode_mutations
from tests.support.data_directory import write_log

KEY = FieldType(Tp.LONGLONG, FLAG_PRIMARY_KEY | FLAG_NOT_NULL)
INFO = Table(7, "t", (Column(1, "a", 0, KEY),), pk_is_handle=True)
WANTED = WantedTables({7: handle_of(INFO)}, frozenset())

Changes = list[tuple[int, int]]
"""Key and commit_ts."""


def prewrite(start_ts: int, *keys: int) -> bytes:
    rows = [encode_insert(INFO, {1: key}, handle=key) for key in keys]
    value = encode_mutations(1, [Mutation(7, rows, [], [], bytes(len(rows)))])
    return prewrite_binlog(Tso(start_ts), prewrite_value=value)


def commit(start_ts: int, commit_ts: int) -> bytes:
    return commit_binlog(Tso(start_ts), Tso(commit_ts))


@pytest.fixture
def logged(tmp_path: Path) -> Iterator[Callable[[Sequence[bytes]], LogHeads]]:
    """The heads of a log of these binlogs, in small slices of small files."""
    with ExitStack() as stack:

        def made(payloads: Sequence[bytes]) -> LogHeads:
            directory = tmp_path / str(len(list(tmp_path.iterdir())))
            write_log(directory / "data", payloads, shards=2, segment_bytes=120)
            found = stack.enter_context(pinned(directory / "data", directory / "job"))
            return log_of(found.segments)

        yield made


def log_of(segments: Sequence[PinnedSegment]) -> LogHeads:
    parts = reader.slices(segments, 60)
    return LogHeads(parts, [heads(part) for part in parts])


def changes(log: LogHeads, upto: int, since: int = NO_TS) -> Changes:
    def found() -> Iterator[tuple[int, int]]:
        for part, read in zip(log.parts, reads(log, Tso(upto), Tso(since)), strict=True):
            for batch in events(committed_prewrites(part, read), WANTED):
                for row in batch.select(["key", "commit_ts"]).to_pylist():
                    yield int.from_bytes(row["key"], "big"), row["commit_ts"]

    return sorted(found())


Made = Callable[[Sequence[bytes]], LogHeads]


def test_a_transaction_that_was_sent_again_counts_once(logged: Made) -> None:
    log = logged(
        [
            prewrite(10, 1, 2),
            prewrite(20, 3),
            prewrite(10, 1, 2),
            commit(10, 15),
            prewrite(10, 1, 2),
            commit(20, 25),
            commit(10, 15),
            prewrite(20, 3),
        ]
    )
    assert changes(log, 30) == [(1, 15), (2, 15), (3, 25)]
    assert changes(log, 30, since=15) == [(3, 25)]


def test_a_moment_holds_what_committed_at_it_and_not_what_did_before_it_began(
    logged: Made,
) -> None:
    log = logged([prewrite(10, 1), commit(10, 15), prewrite(14, 2), commit(14, 16)])
    assert changes(log, 14) == []
    assert changes(log, 15) == [(1, 15)]
    assert changes(log, 16) == [(1, 15), (2, 16)]
    assert changes(log, 16, since=14) == [(1, 15), (2, 16)]
    assert changes(log, 16, since=15) == [(2, 16)]
    assert changes(log, 16, since=16) == []


def test_a_commit_without_its_prewrite_or_with_two_times_ends_the_export(logged: Made) -> None:
    with pytest.raises(Corrupt, match="does not hold its Prewrite"):
        check_pairs(logged([prewrite(10, 1), commit(10, 15), commit(20, 25)]), Tso(25), NO_TS)
    two = logged([prewrite(10, 1), commit(10, 15), commit(10, 16)])
    with pytest.raises(Corrupt, match="committed at 15: another Commit of it says 16"):
        check_pairs(two, Tso(16), NO_TS)


def test_a_rollback_that_names_a_time_commits_nothing(logged: Made) -> None:
    timed = fake(Tso(10))
    log = logged([prewrite(10, 1), timed, prewrite(20, 2), commit(20, 25)])
    assert changes(log, 30) == [(2, 25)]


def latest(log: LogHeads) -> int:
    spec = ExportSpec(
        segments=(),
        schema_history="",
        as_of=NO_TS,
        known_resolved_ts=NO_TS,
        out="",
        staging="",
        scratch="",
        ignore_schemas=(),
    )
    _, commit_ts, resolved_ts = moment(log, spec)
    assert commit_ts == resolved_ts
    return commit_ts


def test_the_latest_moment_is_before_whatever_may_still_commit(tmp_path: Path) -> None:
    def of(*payloads: bytes) -> int:
        directory = tmp_path / str(len(list(tmp_path.iterdir())))
        write_log(directory / "data", payloads, shards=1)
        with pinned(directory / "data", directory / "job") as found:
            return latest(log_of(found.segments))

    decided = prewrite(10, 1), commit(10, 15)
    behind = prewrite(30, 3), commit(30, 35)
    assert of(*decided, *behind) == 35
    assert of(*decided, prewrite(20, 2), *behind) == 20
    assert of(*decided, prewrite(20, 2), *behind, rollback_binlog(Tso(20))) == 35
    # whoever prewrites behind a commit commits above it, however old its start is
    assert of(*decided, *behind, prewrite(20, 2), prewrite(40, 4), commit(40, 45)) == 35


def test_what_came_after_the_sizes_were_taken_bounds_no_moment(tmp_path: Path) -> None:
    """Another shard may have a prewrite of then that is not pinned."""
    write_log(tmp_path / "data", [prewrite(10, 1), commit(10, 15), *_more()], shards=1)
    with pinned(tmp_path / "data", tmp_path / "job") as found:
        parts = reader.slices(found.segments, 1 << 20)
        heads_of = [heads(part) for part in parts]
        assert latest(LogHeads(parts, heads_of)) == 25
        seen = [replace(part, seen=int(heads_of[0].at[2])) for part in parts]
        assert latest(LogHeads(seen, heads_of)) == 15


def _more() -> list[bytes]:
    return [prewrite(20, 2), commit(20, 25)]


transactions = st.lists(
    st.tuples(
        st.sampled_from(["commit", "commit", "rollback", "open"]),
        st.integers(1, 3),
        st.integers(1, 3),
        st.integers(0, 60),
    ),
    max_size=25,
)


@settings(max_examples=25)
@given(made=transactions, upto=st.integers(0, 700))
def test_what_is_read_is_what_committed_up_to_the_moment_once_each(
    made: list[tuple[str, int, int, int]],
    upto: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    payloads: list[tuple[float, bytes]] = []
    committed: Changes = []
    for number, (fate, prewrites, outcomes, late) in enumerate(made):
        start = 10 + 20 * number
        payloads += [(start + at * late / 3, prewrite(start, number)) for at in range(prewrites)]
        if fate == "commit":
            end = start + 5 + late
            committed.append((number, end))
            payloads += [(end + at * late, commit(start, end)) for at in range(outcomes)]
        elif fate == "rollback":
            payloads += [(start + late, rollback_binlog(Tso(start)))]
    if not payloads:
        return
    directory = tmp_path_factory.mktemp("log")
    in_order = [payload for _, payload in sorted(payloads, key=lambda each: each[0])]
    write_log(directory / "data", in_order, shards=2, segment_bytes=200)
    with pinned(directory / "data", directory / "job") as found:
        log = log_of(found.segments)
        for since in (0, upto // 2):
            expected = [each for each in committed if since < each[1] <= upto]
            assert changes(log, upto, since) == sorted(expected)
