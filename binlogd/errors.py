"""Every error binlogd raises on purpose, in families named by what to do next.

    BinlogdError                never raised itself
    ├── ConfigError             fix the configuration and start again (exit code 2)
    ├── Refused                 the caller asked wrongly: tell it, do not retry
    │   ├── MalformedBinlog     the payload does not decode
    │   ├── WrongCluster        the binlog belongs to another TiDB cluster
    │   ├── NotOnline           prewrites are not taken in this state
    │   ├── RecordTooLarge      above the configured record limit
    │   ├── Behind              asks for binlogs that garbage collection has deleted
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
    │   └── NotRunning          no binlogd answers at the configured address
    ├── Corrupt                 bytes disagree with their checksum: never retried, never skipped
    │   ├── CorruptRecord       in a value log
    │   ├── CorruptIndex        rebuild it from the log
    │   ├── CorruptRelay        in a relay log
    │   ├── CorruptPayload      a record that is whole, and no binlog
    │   └── CorruptRow          row bytes that no schema explains
    └── Stuck                   an operator must decide: the Drainer stops, the Pump goes on
        ├── UnknownTable        a row change names a table id that no DDL made
        ├── RowMismatch         a row contradicts the schema of its table
        ├── MissingDdlJob       the schema history does not hold the job of a DDL binlog
        ├── UnsupportedDdl      this DDL cannot be replayed downstream
        ├── StatementRejected   the downstream refuses a statement
        └── SchemaChanged       a read of Spark cannot hold what a table became

An error builds its own sentence: what happened, where, and what to do. Where a Stuck can be passed
over, the sentence ends with the setting that does it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


class BinlogdError(Exception):
    """The root; raised only as one of its children."""


class ConfigError(BinlogdError):
    """The configuration, the data directory or the command line contradicts itself or the world."""


# --- the caller asked wrongly ----------------------------------------------------------


class Refused(BinlogdError):
    """A request that must not be repeated as it is."""


class MalformedBinlog(Refused):
    """A payload that is no serialised `Binlog`; the text is the one the Go decoder would give."""


class WrongCluster(Refused):
    """A request for another TiDB cluster. Text of the original (tidb-binlog pump/server.go)."""

    def __init__(self, got: int, own: int) -> None:
        self.got, self.own = got, own
        super().__init__(f"cluster ID are mismatch, {got} vs {own}")


class NotOnline(Refused):
    """A prewrite for a Pump that is not online, in the words of tidb-binlog pump/server.go."""

    def __init__(self, state: str) -> None:
        self.state = state
        super().__init__(f"no online: {state}")


class RecordTooLarge(Refused):
    """A payload above the record limit; TiDB recognises the words `message larger than max`."""

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        self.size_bytes, self.limit_bytes = size_bytes, limit_bytes
        super().__init__(f"received message larger than max ({size_bytes} vs. {limit_bytes})")


class Behind(Refused):
    """A pull from before the oldest binlog that is still there.

    The original logs `drainer request a purged binlog TS, some binlog events may be loss`, and goes
    on without them. Source: tidb-binlog pump/server.go, PullBinlogs.
    """

    def __init__(self, asked_ts: int, gc_ts: int) -> None:
        self.asked_ts, self.gc_ts = asked_ts, gc_ts
        super().__init__(
            f"request of a purged binlog TS: binlogs up to commit_ts {gc_ts} have been deleted"
            f" (pump.gc), but those after {asked_ts} were asked for: start from a newer full"
            " copy of the data"
        )


class EtcdRefused(Refused):
    """A request that etcd does not take, in etcd's words; `status` names the status of gRPC."""

    def __init__(self, status: str, text: str) -> None:
        self.status = status
        super().__init__(text)


class Overtaken(Refused):
    """A watch from before the oldest change that is still known: read anew, and go on."""

    def __init__(self, since: int, compacted: int) -> None:
        self.since, self.compacted = since, compacted
        super().__init__(f"changes since revision {since}: those up to {compacted} are forgotten")


# --- wait and try again ----------------------------------------------------------------


class Unavailable(BinlogdError):
    """Something outside does not answer now; waiting may heal it."""


class DiskFull(Unavailable):
    """Free space is below the reserve. Text of the original (tidb-binlog pump/storage)."""

    def __init__(self, available_bytes: int, reserve_bytes: int) -> None:
        self.available_bytes, self.reserve_bytes = available_bytes, reserve_bytes
        super().__init__(
            f"no available space, available: {available_bytes},"
            f" StopWriteAtAvailableSpace: {reserve_bytes}"
        )


class LogFailed(Unavailable):
    """A write or fsync of a log failed; nothing of that batch was acknowledged."""

    def __init__(self, path: Path | str, cause: OSError) -> None:
        self.path, self.cause = path, cause
        super().__init__(f"{path}: {cause.strerror or cause}; the batch was not acknowledged")


class IndexUnavailable(Unavailable):
    """The index database is locked or cannot be written; the log takes binlogs all the same."""

    def __init__(self, path: Path | str, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(f"{path}: {reason}; filing is tried again")


class PumpUnavailable(Unavailable):
    """A remote Pump gave no answer: whether it has the binlog is not known."""


class DrainerUnavailable(Unavailable):
    """A remote Drainer gives no answer."""


class UpstreamUnavailable(Unavailable):
    """The schema history or the time source of the upstream cannot be reached."""


class DownstreamUnavailable(Unavailable):
    """The target of the replication cannot be reached, or went away."""


class NotRunning(Unavailable):
    """A command that asks a running binlogd finds none."""

    def __init__(self, url: str, reason: str) -> None:
        self.url = url
        super().__init__(
            f"no binlogd answers at {url}: {reason}; start it with `binlogd serve`, or name its"
            " address with --addr"
        )


# --- bytes that disagree with themselves -------------------------------------------------


class Corrupt(BinlogdError):
    """Stored bytes are not what was written. Never skipped silently."""


class _CorruptAt(Corrupt):
    def __init__(self, path: Path | str, offset: int, reason: str) -> None:
        self.path, self.offset, self.reason = path, offset, reason
        super().__init__(f"{path} at offset {offset}: {reason}")


class CorruptRecord(_CorruptAt):
    """A record of a value log that cannot be read."""

    def __init__(self, path: Path | str, offset: int, reason: str) -> None:
        super().__init__(path, offset, reason)
        self.args = (f"{self}; `binlogd check` lists all that is damaged, and what can be done",)


class CorruptRelay(_CorruptAt):
    """A record of a relay log or of a file-sink log that cannot be read."""


class CorruptIndex(Corrupt):
    """An index that contradicts its log, which is the truth; without it, it is made again."""

    def __init__(self, path: Path | str, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(
            f"{path}: {reason}; stop binlogd and delete it: it is rebuilt from the log"
        )


class CorruptPayload(Corrupt):
    """A payload whose checksum matches and that does not decode; callers add the place."""


class CorruptRow(Corrupt):
    """Row bytes that do not decode; callers that know the table turn it into RowMismatch."""


# --- an operator must decide -------------------------------------------------------------


class Stuck(BinlogdError):
    """The Drainer cannot go on by itself; the Pump goes on receiving."""


def _way_past(commit_ts: int) -> str:
    return (
        f"to pass over this transaction, run `binlogd skip {commit_ts} --reason ...` or add"
        f" {commit_ts} to syncer.ignore-txn-commit-ts"
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
            f" {schema_version}){now}; is upstream.schema-history complete? {_way_past(commit_ts)}"
        )


class RowMismatch(Stuck):
    """A row that contradicts the schema of its table."""

    def __init__(self, table: str, commit_ts: int, reason: str) -> None:
        self.table, self.commit_ts, self.reason = table, commit_ts, reason
        super().__init__(
            f"a row of {table} in transaction commit_ts {commit_ts} contradicts the schema:"
            f" {reason}; {_way_past(commit_ts)}"
        )


class UnreadableRow(BinlogdError):
    """A row of an export that contradicts the schema of its table."""

    def __init__(self, table: str, commit_ts: int, reason: str) -> None:
        """commit_ts 0: it is one of several transactions."""
        of = f" in transaction commit_ts {commit_ts}" if commit_ts else ""
        super().__init__(f"a row of {table}{of} contradicts the schema: {reason}")


class MissingDdlJob(Stuck):
    """The schema history does not hold the job that a DDL binlog names."""

    def __init__(self, job_id: int, commit_ts: int, query: str) -> None:
        self.job_id, self.commit_ts, self.query = job_id, commit_ts, query
        super().__init__(
            f"DDL job {job_id} (commit_ts {commit_ts}: {query}) is not in the schema history;"
            f" bring upstream.schema-history up to date; {_way_past(commit_ts)}"
        )


class UnsupportedDdl(Stuck):
    """A DDL that cannot be replayed downstream."""

    def __init__(self, commit_ts: int, statement: str, reason: str) -> None:
        self.commit_ts, self.statement, self.reason = commit_ts, statement, reason
        super().__init__(
            f"cannot replay DDL of commit_ts {commit_ts}: {reason}: {statement};"
            f" {_way_past(commit_ts)}"
        )


class StatementRejected(Stuck):
    """The downstream refuses a statement, and waiting will not change that."""

    def __init__(self, commit_ts: int, statement: str, code: int, reason: str) -> None:
        self.commit_ts, self.statement, self.code, self.reason = commit_ts, statement, code, reason
        super().__init__(
            f"the downstream refused a statement of commit_ts {commit_ts} with error {code}:"
            f" {reason}: {statement}; {_way_past(commit_ts)}"
        )


class SchemaChanged(Stuck):
    """A table changed in a way that the columns of a running read cannot hold."""

    def __init__(self, table: str, commit_ts: int, what: str, way_past: str) -> None:
        self.table, self.commit_ts = table, commit_ts
        super().__init__(f"{table}: at commit_ts {commit_ts}: {what}; {way_past}")


def leading_error(group: BaseExceptionGroup[BaseException]) -> BinlogdError | None:
    """The error of a group that decides what to do; None if it holds anything but our own."""
    leaves = list(_leaves(group))
    if not all(isinstance(leaf, BinlogdError) for leaf in leaves):
        return None
    ranked: list[BinlogdError] = [leaf for leaf in leaves if isinstance(leaf, BinlogdError)]
    return min(ranked, key=_rank)


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def _rank(error: BinlogdError) -> int:
    if isinstance(error, Stuck):
        return 0
    return 2 if isinstance(error, Unavailable) else 1
