"""Every error binlogd raises on purpose, in families named by what to do next.

    BinlogdError                never raised itself
    ├── ConfigError             fix the configuration and start again (exit code 2)
    ├── Refused                 the caller asked wrongly: tell it, do not retry
    │   ├── MalformedBinlog     the payload does not decode
    │   ├── WrongCluster        the binlog belongs to another TiDB cluster
    │   ├── NotOnline           prewrites are not taken in this state
    │   ├── RecordTooLarge      above the configured record limit
    │   ├── FromTheFuture       a timestamp far above every clock and every commit so far
    │   ├── Behind              asks for binlogs that garbage collection or retention has deleted
    │   ├── EtcdRefused         a registry does not take this request
    │   └── Overtaken           asks for changes that a registry has forgotten
    ├── Unavailable             wait and try again, with a limit
    │   ├── DiskFull            free space is below the configured reserve
    │   ├── LogFailed           a write or fsync failed: the segment is poisoned
    │   ├── IndexUnavailable    the index database is locked or cannot be written
    │   ├── PumpUnavailable     a remote Pump gives no answer, or none that settles it
    │   ├── DrainerUnavailable  a remote Drainer gives no answer
    │   ├── UpstreamUnavailable schema history or time source cannot be reached
    │   ├── DownstreamUnavailable the target database cannot be reached
    │   ├── OutOfOrder          a commit came behind others: begin again, and find out where it is
    │   ├── DownstreamWentBack  the target lacks what it had committed: begin where it stands
    │   └── NotRunning          no binlogd answers at the configured address
    ├── Corrupt                 bytes disagree with their checksum: never retried, never skipped
    │   ├── CorruptRecord       in a value log
    │   ├── CorruptIndex        rebuild it from the log
    │   ├── CorruptRelay        in a relay log
    │   ├── CorruptPayload      a record that is whole, and no binlog
    │   ├── CorruptRow          row bytes that no schema explains
    │   ├── UnreadableRow       a row of an export contradicts the schema of its table
    │   └── PromiseBroken       a source sends what it had promised not to send any more
    ├── Stuck                   an operator must decide: the Drainer stops, the Pump goes on
    │   ├── UnknownTable        a row change names a table id that no DDL made
    │   ├── RowMismatch         a row contradicts the schema of its table
    │   ├── RowNotFound         a row that is changed is not downstream
    │   ├── MissingDdlJob       the schema history does not hold the job of a DDL binlog
    │   ├── UnsupportedDdl      this DDL cannot be replayed downstream
    │   ├── StatementRejected   the downstream refuses a statement
    │   ├── LateCommit          an acknowledged commit came below what was replicated
    │   ├── MissedCommit        another Pump took a commit behind what was pulled from it
    │   ├── PromiseAhead        another Pump promises up to a time that has not come
    │   ├── DdlOutcomeUnknown   nobody can tell whether a DDL was done
    │   ├── SchemaChanged       a read of Spark cannot hold what a table became
    │   └── Unforeseen          a fault of binlogd's own in one part, which is tried again
    ├── GaveUp                  a command or a job gave up: mend what it names, run it again
    │   └── Cancelled           somebody pressed Ctrl-C in the middle
    └── Unfit                   does not serve here: the caller takes another way, or says so

Children that concern one part of the program alone stand there. An error builds its own sentence:
what happened, where, and what to do. It has these as fields too (`message`, `todo`, `skip_ts`), to
be shown apart: no word is ever read out of a sentence. A Stuck cannot be made without
`todo`; the others have that of their family where they know nothing closer. That a transaction can
be passed over is said where it helps, and last.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class BinlogdError(Exception):
    """The root; raised only as one of its children.

    `message`: what happened, and where. `todo`: what to do next, of the family where nothing closer
    is known. `skip_ts`: the commit_ts of the transaction that a skip gets past; 0: none does.
    """

    todo: str
    skip_ts: int = 0

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if not getattr(cls, "todo", ""):
            raise TypeError(f"{cls.__name__} does not say what to do next: give it a `todo`")

    def __init__(self, message: str = "", *, todo: str = "") -> None:
        self.message = message
        self.todo = todo or self.todo
        super().__init__(f"{message}; {todo}" if todo else message)


class Failure(NamedTuple):
    """An error as it is shown: its class, its whole sentence, and the parts of it."""

    kind: str
    sentence: str
    message: str
    todo: str
    skip_ts: int = 0

    @classmethod
    def of(cls, error: BinlogdError) -> Failure:
        """Without what the error holds on to."""
        return cls(type(error).__name__, str(error), error.message, error.todo, error.skip_ts)


class ConfigError(BinlogdError):
    """The configuration, the data directory or the command line contradicts itself or the world."""

    todo = "correct the configuration, and start again"


# --- the caller asked wrongly ----------------------------------------------------------


class Refused(BinlogdError):
    """A request that must not be repeated as it is."""

    todo = "do not repeat it as it is; ask for what can be had"


class MalformedBinlog(Refused):
    """A payload that is no serialised `Binlog`; the text is the one the Go decoder would give."""


class WrongCluster(Refused):
    """A request for another TiDB cluster. Text of the original (tidb-binlog pump/server.go)."""

    def __init__(self, got: int, own: int) -> None:
        super().__init__(f"cluster ID are mismatch, {got} vs {own}")


class NotOnline(Refused):
    """A prewrite for a Pump that is not online, in the words of tidb-binlog pump/server.go."""

    def __init__(self, state: str) -> None:
        super().__init__(f"no online: {state}")


class RecordTooLarge(Refused):
    """A payload above the record limit; TiDB recognises the words `message larger than max`."""

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"received message larger than max ({size_bytes} vs. {limit_bytes})")


class FromTheFuture(Refused):
    """A binlog whose timestamp lies far above the wall clock and above every commit so far."""

    todo = (
        "set the clock of this machine, or of PD, right; for a recording from the future raise"
        " pump.timestamp-ahead-max"
    )

    def __init__(self, start_ts: int, commit_ts: int, horizon_ms: int) -> None:
        ahead_s = ((max(start_ts, commit_ts) >> 18) - horizon_ms) / 1000
        super().__init__(
            f"a timestamp from the future: start_ts {start_ts}, commit_ts {commit_ts} lie"
            f" {ahead_s:.0f} s beyond what is taken; all commits after it would come too late",
            todo=self.todo,
        )


class Behind(Refused):
    """A pull from before the oldest binlog that is still there.

    The original logs `drainer request a purged binlog TS, some binlog events may be loss`, and goes
    on without them. Source: tidb-binlog pump/server.go, PullBinlogs.
    """

    def __init__(self, asked_ts: int, gc_ts: int, by: str = "deleted (pump.gc)") -> None:
        super().__init__(
            f"request of a purged binlog TS: binlogs up to commit_ts {gc_ts} have been {by}, but"
            f" those after {asked_ts} were asked for",
            todo="start from a newer full copy of the data",
        )


class EtcdRefused(Refused):
    """A request that etcd does not take, in etcd's words; `status` names the status of gRPC."""

    def __init__(self, status: str, text: str) -> None:
        self.status = status
        super().__init__(text)


class Overtaken(Refused):
    """A watch from before the oldest change that is still known: read anew, and go on."""

    def __init__(self, since: int, compacted: int) -> None:
        self.compacted = compacted
        super().__init__(f"changes since revision {since}: those up to {compacted} are forgotten")


# --- wait and try again ----------------------------------------------------------------


class Unavailable(BinlogdError):
    """Something outside does not answer now; waiting may heal it."""

    todo = "see that what it names runs and can be reached; waiting may be enough"


class DiskFull(Unavailable):
    """Free space is below the reserve. Text of the original (tidb-binlog pump/storage)."""

    def __init__(self, available_bytes: int, reserve_bytes: int, coming_bytes: int = 0) -> None:
        """`coming_bytes`: of large binlogs that are announced, this one's among them."""
        is_refused = not reserve_bytes and available_bytes > 1 << 20  # by a system with free bytes
        more = f"; large binlogs of {coming_bytes} bytes are coming" if coming_bytes else ""
        super().__init__(
            f"no available space, available: {available_bytes}, StopWriteAtAvailableSpace:"
            f" {reserve_bytes}{'; too few? if not, look for inodes (df -i)' * is_refused}{more}"
        )


class LogFailed(Unavailable):
    """A write or fsync of a file of ours failed; nothing of that batch was acknowledged."""

    todo = "see that its disk works and has room; what was to be written counts as not written"

    def __init__(self, path: Path | str, cause: OSError) -> None:
        super().__init__(f"{path}: {cause.strerror or cause}", todo=self.todo)


class IndexUnavailable(Unavailable):
    """The index database is locked or cannot be written; the log takes binlogs all the same."""

    def __init__(self, path: Path | str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")


class PumpUnavailable(Unavailable):
    """A remote Pump gave no answer: whether it has the binlog is not known."""


class DrainerUnavailable(Unavailable):
    """A remote Drainer gives no answer."""


class UpstreamUnavailable(Unavailable):
    """The schema history or the time source of the upstream cannot be reached."""


class DownstreamUnavailable(Unavailable):
    """The target of the replication cannot be reached, or went away."""


class OutOfOrder(Unavailable):
    """A commit came below the watermark of its source: what follows is for the next session."""

    def __init__(self, source: str, start_ts: int, commit_ts: int) -> None:
        super().__init__(
            f"commit_ts {commit_ts} (start_ts {start_ts}) came below the watermark of {source};"
            " replication begins again at the checkpoint, and finds out where it is"
        )


class DownstreamWentBack(Unavailable):
    """The target stands before the place where this process left it.

    Another server answers (a failover to a copy that lagged), a backup was restored, or commits
    that were not durable got lost. The next session begins where the target stands.
    """

    def __init__(self, server: str, found: str, left: str) -> None:
        super().__init__(
            f"{server} went back: its progress is at {found}, and this process left it at {left};"
            " was there a failover, or a backup restored? replication begins again where it stands"
        )


class NotRunning(Unavailable):
    """A command that asks a running binlogd finds none."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(
            f"no binlogd answers at {url}: {reason}",
            todo="start it with `binlogd serve`, or name the address where one listens",
        )


# --- bytes that disagree with themselves -------------------------------------------------


class Corrupt(BinlogdError):
    """Stored bytes are not what was written. Never skipped silently."""

    todo = (
        "find what damaged the bytes (the disk, memory, a copy that was cut), and bring back whole"
        " ones: `binlogd check` lists what is damaged in a log"
    )


class _CorruptAt(Corrupt):
    def __init__(self, path: Path | str, offset: int, reason: str, *, todo: str = "") -> None:
        self.path, self.offset, self.reason = path, offset, reason
        super().__init__(f"{path} at offset {offset}: {reason}", todo=todo)


class CorruptRecord(_CorruptAt):
    """A record of a value log that cannot be read."""

    def __init__(self, path: Path | str, offset: int, reason: str) -> None:
        todo = "`binlogd check` lists all that is damaged, and what can be done"
        super().__init__(path, offset, reason, todo=todo)


class CorruptRelay(_CorruptAt):
    """A record of a relay log or of a file-sink log that cannot be read."""


class CorruptIndex(Corrupt):
    """An index that contradicts its log, which is the truth; without it, it is made again."""

    def __init__(self, path: Path | str, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(
            f"{path}: {reason}", todo="stop binlogd and delete it: it is rebuilt from the log"
        )


class CorruptPayload(Corrupt):
    """A payload whose checksum matches and that does not decode; callers add the place."""


class CorruptRow(Corrupt):
    """Row bytes that do not decode; callers that know the table turn it into RowMismatch."""


class UnreadableRow(Corrupt):
    """A row of an export that contradicts the schema of its table."""

    todo = "see whether the schema history is whole; a pipeline may leave the table out (--except)"

    def __init__(self, table: str, commit_ts: int, reason: str) -> None:
        """commit_ts 0: it is one of several transactions."""
        of = f" in transaction commit_ts {commit_ts}" if commit_ts else ""
        super().__init__(f"a row of {table}{of} contradicts the schema: {reason}")


class PromiseBroken(Corrupt):
    """A source delivered what lies behind its own promise to be complete."""

    def __init__(self, source: str, start_ts: int, commit_ts: int, promised_ts: int) -> None:
        super().__init__(
            f"source {source} delivered commit_ts {commit_ts} (start_ts {start_ts}) behind"
            f" {promised_ts}, up to which it had promised to be complete: what lies between may"
            " have been replicated without it",
            todo=f"find out what happened to {source} (was its data directory replaced, or its"
            " clock set?), then begin anew from a full copy of the data, or compare with `binlogd"
            " verify`: nothing else finds what is missing",
        )


# --- an operator must decide -------------------------------------------------------------


class Stuck(BinlogdError):
    """The Drainer cannot go on by itself; the Pump goes on receiving.

    `todo` mends the cause. `skip_ts` is given only where passing over that one transaction lets the
    replication go on; it is told behind `todo`.
    """

    todo = "mend what it names; the Drainer tries again after a restart, or a pause and a resume"

    def __init__(self, message: str, *, todo: str, skip_ts: int = 0) -> None:
        super().__init__(message, todo=todo)
        self.skip_ts = skip_ts
        if skip_ts:
            self.args = (f"{message}; {todo}; {way_past(skip_ts)}",)


def way_past(commit_ts: int) -> str:
    """How a transaction is passed over."""
    return (
        f"to pass over this transaction, run `binlogd skip {commit_ts} --reason ...` or add"
        f" {commit_ts} to syncer.ignore-txn-commit-ts"
    )


class LateCommit(Stuck):
    """An acknowledged commit came below what was replicated already: it is not downstream."""

    def __init__(self, source: str, start_ts: int, commit_ts: int, more: str) -> None:
        """`more`: of others like it, or why it is not known whether another source has it."""
        super().__init__(
            f"transaction commit_ts {commit_ts} (start_ts {start_ts}) came below the watermark of"
            f" {source}, behind what was replicated{more}: it is in the log, and not downstream",
            todo=f"look at it with `binlogd txn {commit_ts}` and bring its rows downstream by hand"
            " (`binlogd verify` tells what differs), or begin anew from a full copy of the data;"
            " then pass over it. Is the clock of upstream.tso ahead of the writers?",
            skip_ts=commit_ts,
        )


class MissedCommit(Stuck):
    """Another Pump took commits behind what was pulled from it, and says which ones."""

    def __init__(self, message: str, late: Sequence[tuple[str, int, int]] = ()) -> None:
        """`late`: source, start_ts, commit_ts of each; none where not all are named."""
        self.late = late
        super().__init__(
            message,
            todo="look at it with `binlogd txn COMMIT_TS` at that Pump and bring its rows over by"
            " hand (`binlogd verify` tells what differs), or begin anew from a full copy of the"
            " data; then pause and resume the Drainer, which goes on without it",
        )


class PromiseAhead(Stuck):
    """Another Pump delivered a timestamp far above the wall clock and everything before it."""

    def __init__(self, source: str, start_ts: int, commit_ts: int, horizon_ms: int) -> None:
        ahead_s = ((commit_ts >> 18) - horizon_ms) / 1000
        super().__init__(
            f"{source} delivered commit_ts {commit_ts} (start_ts {start_ts}), {ahead_s:.0f} s"
            " beyond what is taken: with it the checkpoint would pass all that comes until then",
            todo="set the clock of this machine right, or, if that time is meant, raise"
            " pump.timestamp-ahead-max; if the Pump has a wrong commit_ts in its log, what it takes"
            " after it comes to nobody: pause it, close it and begin it anew with an empty data"
            " directory, declare it offline (`binlogd nodes NAME --mark offline`), and compare with"
            " `binlogd verify`",
        )


class UnknownTable(Stuck):
    """A row change for a table id that no DDL seen so far has made."""

    def __init__(
        self, table_id: int, commit_ts: int, schema_version: int, known_as: str = ""
    ) -> None:
        """`known_as` is what the upstream says of it now."""
        self.table_id, self.commit_ts, self.schema_version = table_id, commit_ts, schema_version
        now = f"; the upstream knows it as {known_as}" if known_as else ""
        super().__init__(
            f"not found table id: {table_id} (transaction commit_ts {commit_ts}, schema version"
            f" {schema_version}){now}",
            todo="is upstream.schema-history complete? Bring it up to date",
            skip_ts=commit_ts,
        )


class RowMismatch(Stuck):
    """A row that contradicts the schema of its table."""

    def __init__(self, table: str, commit_ts: int, reason: str) -> None:
        self.table, self.commit_ts, self.reason = table, commit_ts, reason
        super().__init__(
            f"a row of {table} in transaction commit_ts {commit_ts} contradicts the schema:"
            f" {reason}",
            todo=f"look at it with `binlogd txn {commit_ts}`, and whether upstream.schema-history"
            " holds every DDL of the table",
            skip_ts=commit_ts,
        )


class RowNotFound(Stuck):
    """A row that a transaction changes is not downstream."""

    def __init__(self, table: str, commit_ts: int, verb: str, values: str) -> None:
        """`verb`: updates or deletes; `values` are those that it has upstream before."""
        self.table, self.commit_ts, self.verb, self.values = table, commit_ts, verb, values
        super().__init__(
            f"a row of {table} that transaction commit_ts {commit_ts} {verb} is not downstream:"
            f" {values}",
            todo="bring it there by hand (`binlogd verify` tells what else differs) and let the"
            ' Drainer try again; or go on without it by syncer.row-not-found = "repair", which'
            ' writes what the upstream has now, or "count"',
            skip_ts=commit_ts,
        )


class MissingDdlJob(Stuck):
    """The schema history does not hold the job that a DDL binlog names."""

    def __init__(self, job_id: int, commit_ts: int, query: str) -> None:
        super().__init__(
            f"DDL job {job_id} (commit_ts {commit_ts}: {query}) is not in the schema history",
            todo="bring upstream.schema-history up to date (in Spark: the option schemaHistory)",
            skip_ts=commit_ts,
        )


class UnsupportedDdl(Stuck):
    """A DDL that cannot be replayed downstream."""

    def __init__(self, commit_ts: int, statement: str, reason: str, *, todo: str = "") -> None:
        self.commit_ts, self.statement, self.reason = commit_ts, statement, reason
        super().__init__(
            f"cannot replay DDL of commit_ts {commit_ts}: {reason}: {statement}",
            todo=todo or "bring the downstream by hand to what it does upstream",
            skip_ts=commit_ts,
        )


class StatementRejected(Stuck):
    """The downstream refuses a statement, and waiting will not change that."""

    def __init__(
        self,
        commit_ts: int,
        statement: str,
        code: int,
        reason: str,
        *,
        todo: str = "",
        can_skip: bool = True,
    ) -> None:
        """`can_skip`: the refusal is of this transaction alone, not of all that are like it."""
        self.commit_ts, self.statement, self.code, self.reason = commit_ts, statement, code, reason
        super().__init__(
            f"the downstream refused a statement of commit_ts {commit_ts} with error {code}:"
            f" {reason}: {statement}",
            todo=todo or "mend downstream what it names, and let the Drainer try again",
            skip_ts=commit_ts if can_skip else 0,
        )


class DdlOutcomeUnknown(Stuck):
    """A DDL that undoes itself when it is run twice lost its connection, and nobody can tell."""

    def __init__(self, commit_ts: int, statement: str) -> None:
        super().__init__(
            f"the DDL of commit_ts {commit_ts} lost its connection, whether it was done is not"
            f" known, and once more would undo it: {statement}",
            todo="look downstream whether it was done; where it was not, do it by hand; then pass"
            " it over. A user that may read the numbers of tables (GRANT PROCESS ON *.*) is spared"
            " this the next time",
            skip_ts=commit_ts,
        )


class SchemaChanged(Stuck):
    """A table changed in a way that the columns of a running read cannot hold."""

    def __init__(self, table: str, commit_ts: int, what: str, todo: str) -> None:
        super().__init__(f"{table}: at commit_ts {commit_ts}: {what}", todo=todo)


class Unforeseen(Stuck):
    """An exception that nobody foresaw. Its part is tried again, ever later; all else goes on."""

    def __init__(self, part: str, cause: BaseException, commit_ts: int = 0) -> None:
        """`commit_ts`: the transaction that it came up with, where one is known."""
        at = f" at transaction commit_ts {commit_ts}" if commit_ts else ""
        super().__init__(
            f"{part} met an error that was not foreseen{at}: {type(cause).__name__}: {cause}",
            todo="it is tried again by itself, with growing waits; report it with the traceback"
            " that is in the log (unforeseen_error)",
            skip_ts=commit_ts,
        )


# --- commands and jobs -------------------------------------------------------------------


class GaveUp(BinlogdError):
    """A command or a job gave up; what was complete before stays as it is."""

    todo = "mend what it names, and run it again"


class Cancelled(GaveUp):
    """Somebody ended a command by Ctrl-C in the middle; the text says what is done so far."""


class Unfit(BinlogdError):
    """An answer to a caller that tries something: this does not serve here, and why."""

    todo = "choose another way, or mend what it names"


def leading_error(group: BaseExceptionGroup[BaseException]) -> BinlogdError | None:
    """The error of a group that decides what to do; None if it holds anything but our own."""
    found = leaves(group)
    ranked = [leaf for leaf in found if isinstance(leaf, BinlogdError)]
    if len(ranked) < len(found):
        return None
    return min(
        ranked, key=lambda each: (not isinstance(each, Stuck), isinstance(each, Unavailable))
    )


def first_bug(error: BaseException) -> BaseException:
    """Of a group the first that is none of our errors; anything else is it itself."""
    found = leaves(error)
    return next((leaf for leaf in found if not isinstance(leaf, BinlogdError)), found[0])


def leaves(error: BaseException) -> list[BaseException]:
    """Of a group all that are no groups themselves, at least one; else the error alone."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for each in error.exceptions for leaf in leaves(each)]
