"""What an operator should look at, out of its status: each with what to do.

Worst first. What to do about a failure, and whether passing over a transaction can help, are fields
of the error (binlogd/errors.py); what is added here is for what has no error of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

from msgspec import Struct

from binlogd.status import OFF, DrainerStatus, FailureStatus, OwnStatus, UpstreamStatus

WAITS_LONG_S = 30.0
NAMES_SHOWN_MAX = 10
OPEN_PORT = (
    "whoever reaches it may write binlogs and look at this page, and what goes over it can be read"
    " on the way"
)


class Problem(Struct, frozen=True):
    """`severity` is "bad" (data is not moving, or lost), "warn" (look soon), or "info".

    `action` names what may be pressed: "skip" (of `commit_ts`), "resume", "retry", or "". A skip is
    offered where the error says that it helps, and `todo` says first what is better.
    """

    severity: str
    title: str
    detail: str
    todo: str
    action: str = ""
    commit_ts: str = ""


def problems(status: OwnStatus) -> list[Problem]:
    """Empty when all is well."""
    drainer, own = status.drainer, {shard.name for shard in status.shards}
    found = [*_receiving(status), *_replicating(drainer), *_sources(drainer, own), *_kept(status)]
    found += _of_the_node(status)
    return sorted(found, key=lambda each: ("bad", "warn", "info").index(each.severity))


def _receiving(status: OwnStatus) -> Iterator[Problem]:
    if status.refuses_because:
        yield Problem(
            "bad",
            "Writers are refused",
            status.refuses_because,
            "Until this is mended, TiDB waits, or goes on without binlogs if it is told to ignore"
            " errors.",
        )
    if status.late_commits:
        yield _late(status)
    if status.refused_from_the_future:
        yield Problem(
            "bad",
            f"{status.refused_from_the_future} binlogs were refused: their time has not come",
            "Since the start; they lay more than pump.timestamp-ahead-max above the clock of this"
            " machine and every commit. A node whose clock is behind TiDB's refuses them all.",
            "Set the clock (NTP, here and at PD): writers try again by themselves. Only"
            " for a recording from the future raise pump.timestamp-ahead-max.",
        )
    yield from _upstream(status.upstream)
    for shard in status.shards:
        if shard.index_damage:
            yield Problem(
                "warn",
                f"The index of {shard.name} was damaged",
                shard.index_damage,
                "It is made again from the log by itself; look at the disk.",
            )
    if status.close_waits_for:
        yield Problem(
            "info",
            "This Pump is closing",
            f"It waits for: {status.close_waits_for}",
            "It ends when nobody needs it any more, or after pump.close-timeout.",
        )
    if status.blocked_s > WAITS_LONG_S:
        yield Problem(
            "warn",
            "Everything waits for one transaction",
            status.blocked_by,
            "Is its writer still there? upstream.abandoned-prewrite says what becomes of a"
            " transaction without an outcome.",
        )


def _late(status: OwnStatus) -> Problem:
    named = ", ".join(
        f"commit_ts {each.commit_ts} (start_ts {each.start_ts}, {each.shard})"
        for each in status.first_late[:NAMES_SHOWN_MAX]
    )
    commit_ts = str(status.first_late[0].commit_ts) if status.first_late else ""
    return Problem(
        "bad",
        f"{status.late_commits} commits came too late to be replicated",
        "They came below the watermark: they are in the log, and not downstream, unless they came"
        f" by another Pump (a Drainer logs `late_commit_came_elsewhere`): {named}.",
        "See whether the clock of upstream.tso is ahead of the writers, bring the rows downstream"
        " by hand (`binlogd verify` tells what differs) or begin anew from a full copy; then pass"
        " over each: `binlogd skip COMMIT_TS --reason ...`.",
        "skip" if commit_ts else "",
        commit_ts,
    )


def _upstream(upstream: UpstreamStatus) -> Iterator[Problem]:
    for part in upstream.parts:
        if part.trouble:
            yield Problem(
                "warn",
                f"The upstream's {part.name} gives no answer",
                part.trouble,
                "Binlogs are taken, and what is known is replicated. A new DDL, a transaction"
                " without an outcome, and a watermark without writes wait for it.",
            )
    tso = upstream.tso
    if tso is not None and tso.went_back and tso.trouble:
        yield Problem(
            "bad",
            "The time of the upstream went back",
            tso.trouble,
            "Whatever commits meanwhile may come too late to be replicated: look at PD's clock.",
        )


def _replicating(drainer: DrainerStatus) -> Iterator[Problem]:
    if drainer.state == OFF:
        yield Problem(
            "info",
            "Replication is turned off",
            "This node only receives (roles, or drainer.enabled = false): binlogs are kept.",
            "Where a Drainer elsewhere pulls it, all is well; else give it that role, and restart.",
        )
        return
    if drainer.node_state in ("paused", "offline"):
        yield Problem(
            "info" if drainer.node_state == "paused" else "warn",
            f"Replication is {drainer.node_state}",
            "Binlogs are received and kept, and are not applied."
            if drainer.node_state == "paused"
            else "Binlogs are received; what is old may be deleted before it is applied.",
            "Resume it when the downstream is ready.",
            "resume",
        )
    elif drainer.failure is not None:
        yield _failure(drainer, drainer.failure)
    yield from _in_doubt(drainer)


def _failure(drainer: DrainerStatus, failure: FailureStatus) -> Problem:
    message, todo, skip_ts = failure.told, failure.todo, failure.skip_ts
    todo = f"{todo[:1].upper()}{todo[1:]}{'' if todo.endswith(('.', '?')) else '.'}"
    if drainer.state != "stuck":
        count = drainer.failed_in_a_row
        times = f"{count} times in a row" if count > 1 else "once"
        return Problem(
            "warn",
            f"Replication failed {times}, and tries again",
            message,
            f"{todo} The next attempt is in {drainer.retry_in_s:.0f} s, by itself.",
            "retry",
        )
    if not skip_ts:
        return Problem("bad", "Replication is stuck", message, todo, "retry")
    last = (
        f"If nothing else helps: `binlogd skip {skip_ts} --reason ...` passes over this"
        " transaction, and the downstream lacks it from then on."
    )
    return Problem("bad", "Replication is stuck", message, f"{todo} {last}", "skip", str(skip_ts))


def _sources(drainer: DrainerStatus, own: Set[str]) -> Iterator[Problem]:
    """Of other Pumps; what holds one of our `own` shards is said elsewhere."""
    for source in drainer.sources:
        name, silent_s = source.name, source.silent_s
        if source.trouble:
            yield Problem(
                "warn",
                f"The Pump {name} cannot be read",
                f"{source.trouble} (silent for {silent_s:.0f} s)",
                "Everything waits for what it has: bring it back, or take it offline with"
                " `binlogctl` when it has nothing that is needed.",
            )
        elif name == drainer.blocking and silent_s > WAITS_LONG_S and name not in own:
            yield Problem(
                "warn",
                f"The Pump {name} has said nothing for {silent_s:.0f} s",
                "It is connected, and everything waits for what it has.",
                "Its own `binlogd status` says what it waits for; most likely one of its"
                " transactions has no outcome.",
            )


def _in_doubt(drainer: DrainerStatus) -> Iterator[Problem]:
    ddl = drainer.ddl
    if ddl and ddl.elapsed_s > WAITS_LONG_S:
        yield Problem(
            "info",
            f"A DDL has been at work for {ddl.elapsed_s:.0f} s",
            ddl.statement,
            "Everything behind it waits; nothing is to be done unless it hangs downstream.",
        )
    if drainer.values_in_doubt:
        yield Problem(
            "warn",
            f"{drainer.values_in_doubt} times values of columns, or rows, are in doubt",
            "Rows were written while a DDL of their table was at work, or a DDL cut values"
            " downstream; each case is in the log.",
            "Compare these tables with `binlogd verify`.",
        )
    if drainer.expiring:
        names = drainer.expiring
        more = (
            f", and {len(names) - NAMES_SHOWN_MAX} others" if len(names) > NAMES_SHOWN_MAX else ""
        )
        yield Problem(
            "info",
            f"{len(names)} tables have a TTL: what expires upstream stays downstream",
            ", ".join(names[:NAMES_SHOWN_MAX]) + more,
            "TiDB deletes these rows without a binlog. Delete them downstream by the same rule, or"
            " leave them; `binlogd verify` reports them until then.",
        )
    if drainer.trash.error:
        yield Problem(
            "warn",
            "The trash downstream cannot be tidied",
            str(drainer.trash.error),
            "Look at drainer.trash-schema in the downstream.",
        )


def _kept(status: OwnStatus) -> Iterator[Problem]:
    gc = status.gc
    if gc.failed:
        yield Problem(
            "warn",
            "Garbage collection failed",
            gc.failed,
            "It tries again in an hour, sooner if space is short; until then the log only grows.",
        )
    if gc.held_by and status.capacity_bytes and status.free_bytes * 10 < status.capacity_bytes:
        yield Problem(
            "warn",
            "Less than a tenth of the disk is free, and old binlogs are still needed",
            f"They are kept for: {', '.join(gc.held_by)}",
            "Let what they are kept for catch up, or give the disk more room.",
        )


def _of_the_node(status: OwnStatus) -> Iterator[Problem]:
    if status.open_addr:
        yield Problem(
            "warn",
            f"{status.open_addr} is open to other machines, without TLS and without a token",
            f"{OPEN_PORT[0].upper()}{OPEN_PORT[1:]}.",
            "Set security.ssl-ca with cert-allowed-cn; where the network itself is fenced,"
            " security.admin-token-file says that this was thought of.",
        )
    if status.registry_error:
        yield Problem(
            "warn",
            "The registry does not answer",
            status.registry_error,
            "The Pumps that are known are pulled; none can join, pause or leave until it is back.",
        )
    if status.checkpoint.error:
        yield Problem(
            "warn",
            "The checkpoint is not saved",
            status.checkpoint.error,
            "Replication goes on, and would come to all behind the last checkpoint again after a"
            " crash. Mend what is named; it is tried every few seconds.",
        )
    if status.log_error:
        yield Problem(
            "warn",
            "Log lines cannot be written",
            status.log_error,
            "Nothing else waits for that. Make room where the log goes; how many lines are missing"
            " is said there.",
        )
    for each in status.stuck_parts:
        yield Problem(
            "warn",
            f"{each.part[:1].upper()}{each.part[1:]} failed, and is tried again",
            each.error,
            "Receiving goes on. The log has the traceback (unforeseen_error): report it with that.",
        )
