"""What binlog files hold, into a database: `binlogd replay`, the original's reparo.

Files that tell names (a file sink's, the original's relay log) can be replayed anywhere, years
later, without the upstream. Source: tidb-binlog reparo/reparo.go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random

from binlogd.drainer.filtering.filter import TableFilter
from binlogd.drainer.messages.named import NamedTransaction
from binlogd.drainer.mysql.connection import MySqlServer
from binlogd.drainer.mysql.named_apply import NamedApplier, NamedCounters, NamedOptions
from binlogd.errors import BinlogdError, Cancelled, ConfigError, GaveUp, StatementRejected
from binlogd.settings.quantities import wall_clock
from binlogd.tools.chosen import chosen
from binlogd.tools.reading import Source, SourceKind
from binlogd.tools.transaction import Transaction
from binlogd.tso import NO_TS, Tso


class ReplayStopped(GaveUp):
    """A replay ended in the middle; what is applied is applied in whole transactions."""

    def __init__(self, applied_ts: Tso, cause: BinlogdError) -> None:
        self.applied_ts, self.cause = applied_ts, cause
        message = str(cause)
        if isinstance(cause, StatementRejected):
            message = (
                f"the target refused a statement of commit_ts {cause.commit_ts} with error"
                f" {cause.code}: {cause.reason}: {cause.statement}; {cause.todo}"
            )
        past = ""
        if cause.skip_ts:
            past = f"; to pass over this transaction, add --ignore-commit-ts {cause.skip_ts}"
        super().__init__(message, todo=f"{_go_on(applied_ts)}{past}")


def _go_on(applied_ts: Tso) -> str:
    """What was under way may be applied as well: safely, it is done once more."""
    if applied_ts == NO_TS:
        return "nothing was applied"
    return (
        f"applied up to commit_ts {applied_ts} ({wall_clock(applied_ts)}); go on with"
        f" --from {applied_ts + 1} --safe-mode"
    )


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay did, up to which commit_ts."""

    to_ts: Tso
    counters: NamedCounters


def only_named(sources: Sequence[Source]) -> None:
    """Raises ConfigError for logs whose rows have no names."""
    for source in sources:
        if source.kind is not SourceKind.NAMED:
            raise ConfigError(
                f"{source.path} is a {source.kind.value}: a replay reads binlog-* files, which tell"
                " names; for a relay log use `binlogd restore`, for a Pump's log `binlogd serve`"
                " with drainer.initial-commit-ts, and `binlogd dump` to look into either"
            )


async def replay(
    found: Iterable[Transaction],
    wanted: TableFilter,
    server: MySqlServer,
    *,
    is_safe: bool,
    progress: Callable[[Transaction], None] = lambda _: None,
) -> Replayed:
    """Applies what is wanted, in commit order. Raises ReplayStopped, ConfigError, Cancelled."""
    applier = NamedApplier(server, NamedOptions(is_safe=is_safe), Random())
    try:
        await applier.open()
        for transaction, rows in chosen(found, wanted):
            del rows  # decoded anew when its turn comes, again if the server wants it again
            named = NamedTransaction(transaction.commit_ts, transaction.ddl, transaction.rows)
            await applier.apply(named.only(wanted.replicates), transaction.size_bytes)
            progress(transaction)
        await applier.flush()
    except ConfigError:
        raise
    except asyncio.CancelledError:
        unsure = (
            "" if applier.applied_ts else ", but for what was under way; repeat it with --safe-mode"
        )
        raise Cancelled("cancelled", todo=_go_on(applier.applied_ts) + unsure) from None
    except BinlogdError as error:
        raise ReplayStopped(applier.applied_ts, error) from error
    finally:
        applier.close()
    return Replayed(applier.applied_ts, applier.counters)
