"""OpenTelemetry's OTLP over HTTP, by its own SDK: the only door to that library.

Source: OpenTelemetry Protocol Specification, OTLP/HTTP.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from binlogd.extras import require
from binlogd.telemetry.traces import Export, SlowTransaction, TracesRefused

TIMEOUT_S = 5.0


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
