"""Kafka as the downstream: transactions in commit order, each once for whoever reads committed.

Invariant. The progress in Kafka names the last transaction whose messages are all there. Why it
holds: groups of whole transactions go in one Kafka transaction together with the progress. So the
process keeps nothing of its own: on another host it goes on where it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.kafka.broker import MESSAGE_TOO_LARGE, Broker, BrokerOptions, TooLarge
from binlogd.drainer.kafka.message import KafkaMessage, Notation
from binlogd.drainer.kafka.schema_registry import AvroSchemas
from binlogd.drainer.pending import PendingItem, PendingLimits, PendingTransactions, pending_whole
from binlogd.drainer.sink import SinkStatistics
from binlogd.drainer.txn import Ddl, Dml, Txn
from binlogd.errors import ConfigError, CorruptRow, RowMismatch, StatementRejected
from binlogd.tso import NO_TS, Tso

_LIMITS = PendingLimits(queued_rows=50_000, group_rows=10_000)


class KafkaSink:
    """A `Sink`; `notation` says how changes are written down, and `schemas` which schemas that
    takes from a registry."""

    def __init__(
        self, options: BrokerOptions, notation: Notation, schemas: AvroSchemas | None = None
    ) -> None:
        self._broker, self._notation, self._schemas = Broker(options), notation, schemas
        self._checkpoint: Checkpoint | None = None
        self._pending = PendingTransactions[Txn](_LIMITS)
        self._at = NO_TS
        self._bytes = 0

    async def open(self) -> Checkpoint | None:
        """Shuts out a binlogd that still writes; reads the progress. See Sink."""
        if self._schemas is not None:
            await self._schemas.greet()
        text = await self._broker.start()
        if text is not None:
            try:
                stored = msgspec.json.decode(text, type=_Progress)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise ConfigError(f"the progress in Kafka is not binlogd's: {error}") from error
            self._pending.begin(Tso(stored.commit_ts))
            if stored.checkpoint is not None:
                self._checkpoint = Checkpoint.from_json(stored.checkpoint)
        return self._checkpoint

    async def submit(self, txns: Sequence[Txn]) -> None:
        """Queues; waits for room. Raises what `run` failed with."""
        await self._pending.put(map(pending_whole, txns))

    async def flush(self) -> None:
        """Returns when everything submitted is in Kafka. Raises what `run` failed with."""
        await self._pending.flush()

    async def run(self) -> None:
        """Sends what is queued; ends after `close`."""
        await self._pending.run(self._send)

    async def _send(self, items: Sequence[PendingItem[Txn]]) -> None:
        group = [item.form for item in items]
        if self._schemas is not None:
            await self._schemas.register(group)
        if any(item.is_dml or item.is_ddl for item in items):
            await self._publish(group, group[-1].commit_ts)

    async def _publish(self, group: Sequence[Txn], applied_ts: Tso) -> None:
        progress = self._progress(applied_ts, self._checkpoint)
        try:
            self._bytes += await self._broker.publish(self._messages(group), progress)
        except TooLarge as error:
            rule = "messages are whole: none is cut or split"
            raise StatementRejected(
                error.commit_ts, rule, MESSAGE_TOO_LARGE, str(error), todo=error.todo
            ) from error
        except CorruptRow as error:
            raise RowMismatch("a message to Kafka", self._at, str(error)) from error
        except UnicodeEncodeError as error:
            reason = f"it holds text that is no UTF-8, which no message can hold: {error}"
            raise RowMismatch("a message to Kafka", self._at, reason) from error

    def _messages(self, group: Sequence[Txn]) -> Iterator[KafkaMessage]:
        for txn in group:
            self._at = txn.commit_ts
            match txn:
                case Dml():
                    yield from self._notation.rows(txn)
                case Ddl() if not txn.is_skipped:
                    yield from self._notation.ddl(txn)

    def applied_ts(self) -> Tso:
        """Everything up to here is in Kafka, confirmed by all replicas."""
        return self._pending.applied_ts

    async def save(self, checkpoint: Checkpoint) -> None:
        """Stores it beside the progress, in the topic of the progress."""
        async with self._pending.writing:
            await self._broker.publish([], self._progress(self._pending.applied_ts, checkpoint))
            self._checkpoint = checkpoint

    def _progress(self, applied_ts: Tso, checkpoint: Checkpoint | None) -> bytes:
        text = checkpoint.to_json().decode() if checkpoint is not None else None
        return msgspec.json.encode(_Progress(applied_ts, text))

    async def close(self) -> None:
        """Drops what is queued, waits for a group that is under way, lets go of Kafka."""
        self._pending.close()
        async with self._pending.writing:
            await self._broker.stop()

    def statistics(self) -> SinkStatistics:
        """How it stands; cheap."""
        return self._pending.statistics(bytes_written=self._bytes)


class _Progress(msgspec.Struct, rename="kebab"):
    commit_ts: int
    checkpoint: str | None = None
