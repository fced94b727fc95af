"""What the Drainer handed on and how long it took, over all its sessions.

Source: tidb-binlog drainer/metrics.go.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence

import msgspec

from binlogd.binlog import Pulled
from binlogd.drainer.slow import SlowTransactions
from binlogd.drainer.txn import Ddl, Dml, Txn
from binlogd.status import BusyTable, SubmittedDdl
from binlogd.telemetry.histogram import Histogram, HistogramStatistics, SizeHistogram, doubling
from binlogd.tidb.kinds import DELETE, INSERT, UPDATE
from binlogd.tso import Tso, physical_ms

_SECONDS = doubling(0.00005, 18)
_DELAY_SECONDS = doubling(0.001, 22)
_BINLOG_SIZES, _FILE_SIZES = 25, 20
DDLS_KEPT = 20
TABLES_COUNTED_MAX = 512
"""Of more, those with the fewest rows are forgotten, and begin at none again."""
TABLES_SHOWN = 10
_STATEMENT_CHARS_MAX = 1_000
KINDS = {"Insert": INSERT, "Update": UPDATE, "Delete": DELETE}
"""Bytes of `Mutation.sequence`."""


class DrainerMeasuresStatistics(msgspec.Struct, frozen=True):
    """By the original's label values. Sizes in bytes, durations in seconds. `ddls` are the last
    ones, in commit order; `busy_tables` those with the most rows, the busiest first."""

    events: Mapping[str, int]
    undecodable: int
    execute_seconds: HistogramStatistics
    checkpoint_delay_seconds: HistogramStatistics
    reach_seconds: Mapping[str, HistogramStatistics]
    read_sizes: Mapping[str, HistogramStatistics]
    relay: FileStatistics
    ddls: tuple[SubmittedDdl, ...]
    busy_tables: tuple[BusyTable, ...]


class FileStatistics(msgspec.Struct, frozen=True):
    """Writes of binlog files: bytes of each, and seconds that each took, its sync included."""

    sizes: HistogramStatistics
    seconds: HistogramStatistics


class FileMeasures:
    """Counts writes of binlog files."""

    def __init__(self) -> None:
        self._sizes = SizeHistogram(_FILE_SIZES)
        self._seconds = Histogram(_SECONDS)

    def wrote(self, size_bytes: int, took_s: float) -> None:
        """One write is durable."""
        self._sizes.observe(size_bytes)
        self._seconds.observe(took_s)

    def statistics(self) -> FileStatistics:
        """So far."""
        return FileStatistics(self._sizes.statistics(), self._seconds.statistics())


class DrainerMeasures:
    """Made once for a Drainer. What it counts for a row is one look at a byte string."""

    def __init__(self, slow: SlowTransactions | None = None) -> None:
        """Slow transactions are told to `slow`; None: nobody wants to know of them."""
        self.slow = slow
        self.relay = FileMeasures()
        self._events: Counter[str] = Counter()
        self._tables: Counter[str] = Counter()
        self.skipped = self.undecodable = 0
        self._execute_s = Histogram(_SECONDS)
        self._checkpoint_delay_s = Histogram(_DELAY_SECONDS)
        self._reach_s = defaultdict[str, Histogram](lambda: Histogram(_SECONDS))
        self._read_size = defaultdict[str, SizeHistogram](lambda: SizeHistogram(_BINLOG_SIZES))
        self._ddls: deque[SubmittedDdl] = deque(maxlen=DDLS_KEPT)

    def pulled(self, source: str, pulled: Pulled, wall_ms: int) -> None:
        """A source gave binlogs. The oldest of them stands for how long all of them took."""
        if not pulled.binlogs:
            return
        if self.slow is not None:
            self.slow.pulled(pulled, wall_ms)
        age_s = max(0, wall_ms - physical_ms(pulled.binlogs[0].commit_ts)) / 1000
        self._reach_s[source].observe(age_s, len(pulled.binlogs))
        sizes = self._read_size[source]
        for binlog in pulled.binlogs:
            sizes.observe(len(binlog.payload))

    def submitted(self, txns: Sequence[Txn], took_s: float) -> None:
        """The sink has taken transactions; it may have to take them again in another session."""
        self._execute_s.observe(took_s / len(txns), len(txns))
        if self.slow is not None:
            self.slow.given(txns, took_s)
        for txn in txns:
            if isinstance(txn, Dml):
                for change in txn.changes:
                    self._tables[change.table.label] += len(change.mutation.sequence)
                    for kind, byte in KINDS.items():
                        self._events[kind] += change.mutation.sequence.count(byte)
            elif isinstance(txn, Ddl):
                self._note_ddl(txn)
        if len(self._tables) > TABLES_COUNTED_MAX:
            self._tables = Counter(dict(self._tables.most_common(TABLES_COUNTED_MAX // 2)))

    def _note_ddl(self, ddl: Ddl) -> None:
        if self._ddls and ddl.commit_ts <= self._ddls[-1].commit_ts:
            return  # once more, in another session
        text = ddl.statement or ddl.job.query
        if len(text) > _STATEMENT_CHARS_MAX:
            text = f"{text[:_STATEMENT_CHARS_MAX]}…"
        self._ddls.append(
            SubmittedDdl(ddl.commit_ts, ddl.database, ddl.table, text, ddl.is_skipped, ddl.reason)
        )

    def saved(self, commit_ts: Tso, wall_ms: int) -> None:
        """A checkpoint is durable."""
        self._events["savepoint"] += 1
        self._checkpoint_delay_s.observe(max(0, wall_ms - physical_ms(commit_ts)) / 1000)

    def statistics(self) -> DrainerMeasuresStatistics:
        """So far; cheap."""
        return DrainerMeasuresStatistics(
            events=dict(self._events),
            undecodable=self.undecodable,
            execute_seconds=self._execute_s.statistics(),
            checkpoint_delay_seconds=self._checkpoint_delay_s.statistics(),
            reach_seconds={name: each.statistics() for name, each in self._reach_s.items()},
            read_sizes={name: each.statistics() for name, each in self._read_size.items()},
            relay=self.relay.statistics(),
            ddls=tuple(self._ddls),
            busy_tables=tuple(BusyTable(*each) for each in self._tables.most_common(TABLES_SHOWN)),
        )
