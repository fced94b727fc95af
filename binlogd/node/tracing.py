"""Traces of slow transactions leave the node: a batch a second, in a thread of their own."""

from __future__ import annotations

import asyncio
from functools import partial

import structlog

from binlogd.host.threads import Threads, over
from binlogd.settings.setup import Setup
from binlogd.telemetry.otlp import exporter
from binlogd.telemetry.traces import Export, Traces, TracesRefused

EVERY_S = 1.0

log = structlog.get_logger(__name__)


class Tracing:
    """`traces` is what the halves tell; `run` sends it."""

    def __init__(self, traces: Traces, export: Export) -> None:
        self.traces, self._export = traces, export

    async def run(self) -> None:
        """Until cancelled. What is refused is not sent again: a collector that is away costs no
        memory."""
        thread, refusal = Threads(1, name="traces"), ""
        try:
            while True:  # until cancelled, when the node stops
                await asyncio.sleep(EVERY_S)
                batch = self.traces.take()
                if not batch:
                    continue
                try:
                    await over(thread.run(partial(self._export, batch)))
                except TracesRefused as error:
                    self.traces.dropped += len(batch)
                    if str(error) != refusal:
                        log.warning("traces_refused", cause=str(error), traces=len(batch))
                    refusal = str(error)
                else:
                    self.traces.exported += len(batch)
                    refusal = ""
        finally:
            thread.close()


def make_tracing(setup: Setup, node_id: str) -> Tracing | None:
    """None where nobody collects traces. Raises ConfigError."""
    telemetry = setup.config.telemetry
    traces = Traces(telemetry.slow_transaction)
    if not telemetry.otlp_endpoint:
        return None
    return Tracing(traces, exporter(telemetry.otlp_endpoint, node_id))
