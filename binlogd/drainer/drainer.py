"""The Drainer: keeps a session going, and says how it stands.

Invariant. Whatever happens in replication, nothing but a cancellation comes out of `run`: the Pump
beside it goes on.

An Unavailable ends a session and begins another after a wait, without limit on their number. An
exception that nobody foresaw does the same and is called stuck meanwhile: waiting rarely heals it,
and the waits grow, so that it is no crash loop. Another Stuck, Corrupt or configuration error
stays: only an operator can go on from there, and a restart would hide it; `retry` is how an
operator goes on without one. One Stuck is looked at twice: a row that knows a newer schema than any
DDL binlog so far may be explained by a job that is about to be in the history (tidb/schema.py), so
it is tried again some times, with the history read anew.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import structlog

from binlogd.drainer.backoff import Backoff
from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.late_commits import KnownLateCommits
from binlogd.drainer.measures import DrainerMeasures
from binlogd.drainer.ports import DrainerOptions, DrainerPorts
from binlogd.drainer.session import Session
from binlogd.drainer.statistics import DrainerState, DrainerStatistics, Looks
from binlogd.errors import (
    BinlogdError,
    Corrupt,
    DownstreamUnavailable,
    Failure,
    RowMismatch,
    Unavailable,
    Unforeseen,
    UnknownTable,
)
from binlogd.host.clock import is_set_within
from binlogd.telemetry.faults import apart, let_go, named, unforeseen
from binlogd.tso import NO_TS, Tso

MISMATCH_RETRIES_MAX = 7
"""Some half a minute with the default backoff; TiDB closes a job within seconds."""

log = structlog.get_logger(__name__)


class Drainer:
    """Owns the sessions; made once, run once."""

    def __init__(self, ports: DrainerPorts, backoff: Backoff, options: DrainerOptions) -> None:
        self._ports = replace(ports, on_saved=self._saved)
        self._on_saved = ports.on_saved
        self._backoff, self._options = backoff, options
        self._late = KnownLateCommits(ports.late)
        self._session: Session | None = None
        self._draining, self._woken, self._ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._deadline: asyncio.Timeout | None = None
        self._state = DrainerState.STARTING
        self._failure: Failure | None = None
        self._retry_at_s = 0.0
        self._sessions = self._unforeseen = 0
        self._mismatches = NO_TS, 0  # at one commit_ts: nothing behind it is walked before it
        begin_ts, self._measures = options.initial_commit_ts, DrainerMeasures().statistics()
        self._left = DrainerStatistics(Checkpoint(begin_ts), begin_ts, self._measures)

    async def run(self) -> None:
        """Replicates until `drain`."""
        try:
            async with asyncio.timeout(None) as self._deadline:
                await self._supervise()
        except TimeoutError:
            log.warning("drain_timed_out", checkpoint=self._left.checkpoint.commit_ts)
            self._failure = Failure.of(
                DownstreamUnavailable(
                    "draining took too long; the checkpoint is not consistent",
                    todo="start again: what was on its way is applied anew",
                )
            )
        finally:
            self._note_session()
            self._deadline = None
            self._state = DrainerState.STOPPED
            self._ended.set()

    async def drain(self) -> None:
        """Ends `run`: what was pulled is applied, and a consistent checkpoint saved. Returns when
        it is over, after `drain_timeout_s` at the latest."""
        self._draining.set()
        self._woken.set()
        if self._session is not None:
            self._session.stop()
        if self._state is DrainerState.RUNNING:
            self._state = DrainerState.DRAINING
        if self._deadline is not None:
            now = asyncio.get_running_loop().time()
            self._deadline.reschedule(now + self._options.drain_timeout_s)
        await self._ended.wait()

    def retry(self) -> None:
        """Goes on from being stuck, because what it was stuck at has been dealt with."""
        self._woken.set()

    def statistics(self) -> DrainerStatistics:
        """How it stands; cheap."""
        session = self._session
        looks = session.looks if session is not None else Looks()
        self._measures = looks.at(self._ports.measures.statistics, self._measures)
        return replace(
            session.statistics() if session is not None else self._left,
            state=self._state,
            failure=self._failure,
            sessions_begun=self._sessions,
            transactions_skipped=self._ports.measures.skipped,
            unforeseen_errors=self._unforeseen,
            failed_in_a_row=self._backoff.attempts,
            retry_in_s=max(0.0, self._retry_at_s - asyncio.get_running_loop().time()),
            measures=self._measures,
        )

    # --- sessions --------------------------------------------------------------------------

    async def _supervise(self) -> None:
        while not self._draining.is_set():
            began_at = self._left.checkpoint.commit_ts
            error = await self._attempt()
            if isinstance(error, UnknownTable):
                error = await self._explained(error)
            is_ahead = self._may_be_explained(error)
            self._note_session()
            if error is None:
                log.info("replication_drained", commit_ts=self._left.checkpoint.commit_ts)
                return
            if self._left.checkpoint.commit_ts > began_at:
                self._backoff.reset()
            self._failure = Failure.of(error)
            if isinstance(error, Corrupt):
                self._ports.measures.undecodable += 1
            if isinstance(error, Unavailable) or is_ahead:
                await self._wait_to_retry(error, DrainerState.RETRYING)
            elif isinstance(error, Unforeseen):
                self._unforeseen += 1
                await self._wait_to_retry(error, DrainerState.STUCK)
            else:
                self._state = DrainerState.STUCK
                log.error("replication_stuck", cause=str(error), error=type(error).__name__)
                self._woken.clear()
                if not self._draining.is_set():
                    await self._woken.wait()

    async def _attempt(self) -> BinlogdError | None:
        self._sessions += 1
        self._state = DrainerState.RUNNING
        try:
            self._session = Session(self._ports, self._options, self._late, self._left)
            await apart(self._session.run)
        except Exception as error:  # noqa: BLE001 - the bulkhead
            found = named("replication", error)
            let_go(error)
            return found
        return None

    async def _explained(self, error: UnknownTable) -> BinlogdError:
        """With the name of the table, where somebody knows what an unknown id stands for now."""
        if self._ports.table_name is None:
            return error
        try:
            known_as = await self._ports.table_name(error.table_id)
        except Exception as fault:  # noqa: BLE001 - the bulkhead
            return unforeseen("the upstream's name of a table", fault)
        return UnknownTable(error.table_id, error.commit_ts, error.schema_version, known_as)

    def _may_be_explained(self, error: BinlogdError | None) -> bool:
        """Whether to read the history anew: a row of a multi-schema change may precede its job."""
        if not (isinstance(error, RowMismatch) and self._session is not None):
            return False
        if not self._session.was_ahead(Tso(error.commit_ts)):
            return False
        at_ts, count = self._mismatches
        count = count + 1 if at_ts == error.commit_ts else 1
        self._mismatches = Tso(error.commit_ts), count
        return count <= MISMATCH_RETRIES_MAX

    async def _wait_to_retry(self, error: BinlogdError, state: DrainerState) -> None:
        """Until it is time, or somebody says that the cause has been dealt with."""
        self._state = state
        self._woken.clear()
        if self._draining.is_set():
            return
        wait_s = self._backoff.next_s()
        self._retry_at_s = asyncio.get_running_loop().time() + wait_s
        log.warning(
            "replication_retried", cause=str(error), wait_s=wait_s, attempt=self._backoff.attempts
        )
        await is_set_within(self._woken, wait_s)

    def _saved(self, checkpoint: Checkpoint) -> None:
        if checkpoint.commit_ts > self._left.checkpoint.commit_ts:
            self._backoff.reset()
        self._left = replace(self._left, checkpoint=checkpoint)
        self._failure = None
        self._on_saved(checkpoint)

    def _note_session(self) -> None:
        if self._session is not None:
            now, self._session = self._session.statistics(), None
            self._left = replace(
                now, applied_ts=now.checkpoint.commit_ts, not_saved="", expiring=()
            )
