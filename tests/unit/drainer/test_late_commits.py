"""What a session does about commits that came below what their shard had promised."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest

from binlogd.binlog import Late
from binlogd.drainer.filtering.filter import TableFilter
from binlogd.drainer.late_commits import begin, came
from binlogd.errors import LateCommit, OutOfOrder
from binlogd.tso import Tso


class Undecided:
    """Late commits until they are dealt with."""

    def __init__(self, *commit_tss: int) -> None:
        self.left = [Late("shard-0", Tso(ts - 1), Tso(ts)) for ts in commit_tss]

    def unresolved(self) -> Sequence[Late]:
        return self.left

    async def resolve(self, commit_tss: Collection[Tso]) -> None:
        self.left = [each for each in self.left if each.commit_ts not in commit_tss]


@pytest.mark.parametrize(("commit_ts", "is_too_late"), [(19, True), (20, True), (21, False)])
async def test_it_is_too_late_for_who_has_reached_it(commit_ts: int, *, is_too_late: bool) -> None:
    late, reached_ts = Undecided(commit_ts), Tso(20)
    assert isinstance(
        came(late, TableFilter(), reached_ts), LateCommit if is_too_late else OutOfOrder
    )
    if is_too_late:
        with pytest.raises(LateCommit, match=f"commit_ts {commit_ts} "):
            await begin(late, TableFilter(), reached_ts)
        assert len(late.left) == 1
        await begin(late, TableFilter(ignored_commit_ts=[Tso(commit_ts)]), reached_ts)
    else:
        await begin(late, TableFilter(), reached_ts)
    assert late.left == []
