"""From when on rows see what a DDL of partitions leaves: every order of small histories."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from binlogd.tidb.kinds import ActionType
from binlogd.tidb.model import Job, job_from_json
from binlogd.tidb.turns import Turn, turn_of

FIRST = 10
"""The version before any step."""
STEPS = {
    ActionType.DROP_TABLE_PARTITION: (0, 3),
    ActionType.TRUNCATE_TABLE_PARTITION: (0, 1),
    ActionType.EXCHANGE_TABLE_PARTITION: (1, 2),
    ActionType.REORGANIZE_PARTITION: (4, 5),
}
"""Which of its steps rows see, and how many there are."""


def job(kind: int, version: int, real_start_ts: int, finished_ts: int, start_ts: int = 0) -> Job:
    made = job_from_json(b'{"id": 1, "state": 6}')
    return replace(
        made,
        type=kind,
        schema_version=version,
        real_start_ts=real_start_ts,
        start_ts=start_ts or real_start_ts,
        finished_ts=finished_ts,
    )


@pytest.mark.parametrize("kind", STEPS)
def test_what_is_not_in_doubt_is_what_the_transaction_saw(kind: int) -> None:
    """A transaction begins, uses the table as it is then or as it began with it, and commits, at
    all moments between the steps of a job; a step waits for those that used an older table."""
    seen_step, count = STEPS[ActionType(kind)]
    published = [10 + 20 * step for step in range(count)]  # when each step is made
    done_ts, finished_ts = published[-1], published[-1] + 20
    turn = turn_of(job(kind, FIRST + count, published[0] - 1, finished_ts), done_ts, ())
    moments = range(5, finished_ts + 20, 4)
    kinds_of_answer = set()
    for start, use, commit in itertools.combinations_with_replacement(moments, 3):
        newest = [FIRST + sum(ts < moment for ts in published) for moment in (start, use)]
        for version, used in itertools.product(range(newest[0] - 1, newest[0] + 1), range(20)):
            if not max(FIRST, version) <= used <= newest[1] or version < FIRST:
                continue
            waits = [*published[1:], finished_ts]
            if any(used < FIRST + 1 + step and commit >= ts for step, ts in enumerate(waits)):
                continue  # TiDB would have waited with the next step
            if turn.is_doubtful(version, commit):
                kinds_of_answer.add("doubtful")
                continue
            has_seen = used >= FIRST + 1 + seen_step
            if kind == ActionType.REORGANIZE_PARTITION:  # told by the last step, see `late`
                has_seen = used >= FIRST + count or commit > finished_ts
            assert turn.is_seen(version, commit) == has_seen, (version, used, start, commit)
            kinds_of_answer.add("seen" if has_seen else "not seen")
    assert kinds_of_answer == {"doubtful", "seen", "not seen"}


def test_a_drop_beside_another_job_is_seen_in_the_first_version_behind_what_was_known() -> None:
    drop = job(ActionType.DROP_TABLE_PARTITION, 85, 1000, 1300)
    assert turn_of(drop, 1200, {83}, known_version=80) == Turn(81, 82, 1000, 1200)
    assert turn_of(drop, 1200, {83}) == Turn(82, 82, 1000, 1200)
    assert turn_of(drop, 1200, set()) == Turn(83, 83, 1000, 1200)
    assert turn_of(drop, 1200, {81, 83}, known_version=80) == Turn(82, 82, 1000, 1200)


def test_what_may_have_been_made_by_another_job_is_in_doubt() -> None:
    turn = turn_of(job(ActionType.DROP_TABLE_PARTITION, 85, 1000, 1300), 1200, {83}, 80)
    assert turn.is_seen(81, 1100)
    assert turn.is_doubtful(81, 1100)
    assert not turn.is_doubtful(82, 1100)
    assert not turn.is_doubtful(80, 1000)


def test_a_job_that_does_not_tell_when_it_began_began_when_it_was_queued() -> None:
    drop = job(ActionType.DROP_TABLE_PARTITION, 85, 0, 1300, start_ts=900)
    assert turn_of(drop, 1200, set()).published_ts == 900


def test_a_row_is_looked_at_by_what_it_is_known_to_have_seen() -> None:
    turn = turn_of(job(ActionType.TRUNCATE_TABLE_PARTITION, 86, 1000, 1300), 1200, ())
    assert [turn.seen(85, 1300), turn.seen(85, 1301), turn.seen(87, 1301)] == [85, 86, 87]
