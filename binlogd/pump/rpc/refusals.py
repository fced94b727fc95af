"""What a client is told when something is not done: the statuses and texts of the original."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from grpclib.const import Status
from grpclib.exceptions import GRPCError

from binlogd.binlog import Late, others_like_it
from binlogd.errors import BinlogdError, LateCommit, RecordTooLarge
from binlogd.tso import Tso

_LATE_NAMED_MAX = 100
_BY_TIME = attrgetter("commit_ts")


def missed(late: Sequence[Late], sent_ts: Tso) -> GRPCError | None:
    """What a puller is told who has come further than commits that came since; the connection after
    it goes on without them, as the original's would. It can find out about them if all are named:
    where there are many, not even their number is sure."""
    behind = sorted((each for each in late if each.commit_ts <= sent_ts), key=_BY_TIME)
    if not behind:
        return None
    others = len(behind if len(late) <= _LATE_NAMED_MAX else late) - 1
    more = others_like_it(others, behind[1:_LATE_NAMED_MAX])
    return GRPCError(Status.DATA_LOSS, LateCommit(*behind[0], more).message)


def refusal(error: BinlogdError | GRPCError) -> GRPCError:
    """The status that a Go client would get for this error."""
    if isinstance(error, GRPCError):
        return error
    if isinstance(error, RecordTooLarge):
        return GRPCError(Status.RESOURCE_EXHAUSTED, f"grpc: {error}")
    return GRPCError(Status.UNKNOWN, str(error))


def refusals(
    outcomes: Sequence[BinlogdError | GRPCError | None],
) -> Sequence[GRPCError | None]:
    """`refusal` of each that is one; None is OK."""
    return [None if outcome is None else refusal(outcome) for outcome in outcomes]
