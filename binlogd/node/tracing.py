"""Traces of slow transactions leave the node: a batch a second, in a thread of their own, as
OpenTelemetry's OTLP over HTTP, by its own SDK; who collects none imports nothing of it.

Source: OpenTelemetry Protocol Specification, OTLP/HTTP.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from functools import partial
from typing import Any

import structlog

from binlogd.extras import require
from binlogd.host.threads import Threads, over
from binlogd.settings.setup import Setup
from binlogd.telemetry.traces import Export, SlowTransaction, Traces, TracesRefused

EVERY_S = 1.0
TIMEOUT_S = 5.0

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


def exporter(endpoint: str, node_id: str) -> Export:
    """Sends to `endpoint`, such as http://collector:4318. Raises ConfigError where the extra is not
    installed."""
    require("otel", "opentelemetry.exporter.otlp.proto.http", place="telemetry.otlp-endpoint")
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.export import SpanExportResult

    sender = OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces", timeout=TIMEOUT_S)
    resource = Resource({"service.name": "binlogd", "service.instance.id": node_id})

    def export(batch: Sequence[SlowTransaction]) -> None:
        spans = [span for each in batch for span in _spans(each, resource)]
        if sender.export(spans) is not SpanExportResult.SUCCESS:
            raise TracesRefused(f"{endpoint} takes no traces; its own log, or ours, says why")

    return export


def _spans(slow: SlowTransaction, resource: Any) -> list[Any]:
    """The first is the parent of the others."""
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext, TraceFlags

    trace_id = _number(16, "trace", slow.start_ts)
    whole = slow.spans[0]
    # several nodes tell of one transaction, and one of its prewrite and its commit in one write
    node, attributes = resource.attributes["service.instance.id"], sorted(slow.attributes.items())
    root = _number(8, node, whole.name, whole.begin_ms, attributes)
    found = []
    for place, span in enumerate(slow.spans):
        span_id = _number(8, root, place) if place else root
        contexts = [
            SpanContext(trace_id, each, is_remote=False, trace_flags=TraceFlags(1))
            for each in (span_id, root)
        ]
        found.append(
            ReadableSpan(
                span.name,
                context=contexts[0],
                parent=contexts[1] if place else None,
                resource=resource,
                attributes=dict(slow.attributes) if not place else None,
                start_time=int(span.begin_ms * 1000) * 1000,  # a float rounds nanoseconds
                end_time=int(max(span.begin_ms, span.end_ms) * 1000) * 1000,
            )
        )
    return found


def _number(size: int, *parts: object) -> int:
    text = "/".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=size).digest(), "big") or 1
