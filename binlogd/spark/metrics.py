"""What Prometheus scrapes of a pipeline, at an address of its own (`--metrics-addr`).

The numbers are those of the driver, which sees each batch. How far it is behind is asked of the
source when somebody looks, so that it rises while a batch stands.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer

import structlog

from binlogd.errors import BinlogdError, ConfigError
from binlogd.host.clock import WallClock
from binlogd.settings.quantities import address_of, shown_address
from binlogd.spark.counts import RowCounts
from binlogd.spark.inputs import open_input
from binlogd.spark.request import ReadRequest
from binlogd.telemetry.exposition import Exposition, process_metrics
from binlogd.telemetry.histogram import Histogram, doubling
from binlogd.tso import NO_TS, Tso, behind_s, physical_ms

ASKED_EVERY_MS = 5_000
"""The source at most, however many scrape."""
REQUEST_S = 10.0
"""Of one who asks; the next one waits."""
_SECONDS = doubling(0.0625, 16)

log = structlog.get_logger(__name__)


class PipelineFigures:
    """Counts what a pipeline does, since its process began."""

    def __init__(self, asked: ReadRequest) -> None:
        self._asked, self._clock = asked, WallClock()
        self._seconds: dict[str, Histogram] = {}
        self._batches = self._failures = self._transactions = 0
        self._counts, self._commit_ts = RowCounts(), NO_TS
        self._backlog_of_ms = 0
        self._backlog: tuple[float | None, int | None] = (None, None)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A part of a batch, which takes its time; one that fails is not counted."""
        begin_ms = self._clock.wall_ms()
        yield
        took_s = max(0, self._clock.wall_ms() - begin_ms) / 1000
        self._seconds.setdefault(name, Histogram(_SECONDS)).observe(took_s)

    @contextmanager
    def batch(self, start: Tso) -> Iterator[None]:
        """One from its begin, behind `start`, to its end or its failure."""
        self._commit_ts = max(self._commit_ts, start)
        try:
            with self.phase("batch"):
                yield
        except BaseException:
            self._failures += 1
            raise

    def done(self, end: Tso, counts: RowCounts, transactions: int | None) -> None:
        """All up to `end` is in the target."""
        self._batches += 1
        self._transactions += transactions or 0
        self._counts, self._commit_ts = self._counts.plus(counts), end

    def text(self) -> bytes:
        """In Prometheus' format."""
        out, counts = Exposition(), self._counts
        seconds, transactions = self._behind()
        changes = {"insert": counts.inserts, "update": counts.updates, "delete": counts.deletes}
        name = "binlogd_pipeline_"
        out.counter(f"{name}batches", "Batches that are in the target.", self._batches)
        out.counter(f"{name}failures", "Batches that failed.", self._failures)
        out.counter(
            f"{name}changes",
            "Row changes read.",
            [({"type": kind}, number) for kind, number in changes.items()],
        )
        out.counter(f"{name}bytes_read", "Of keys and rows, or of binlogs.", counts.bytes)
        out.counter(f"{name}transactions", "Read, by the index.", self._transactions)
        out.counter(f"{name}rows_put", "Rows written.", counts.put)
        out.counter(f"{name}rows_gone", "Keys removed.", counts.gone)
        at = physical_ms(self._commit_ts) if self._commit_ts else None
        out.gauge(f"{name}commit_ts", "Up to where the target has everything.", at)
        out.gauge(f"{name}behind_seconds", "From there to what the source has.", seconds)
        out.gauge(f"{name}behind_transactions", "Between there and there.", transactions)
        out.histogram(
            f"{name}batch_seconds",
            "Of a batch and its phases.",
            [({"phase": each}, took.statistics()) for each, took in [*self._seconds.items()]],
        )
        return out.text() + process_metrics()

    def _behind(self) -> tuple[float | None, int | None]:
        """Seconds and transactions between the target and what the source has; None: not known."""
        now_ms = self._clock.wall_ms()
        if not 0 <= now_ms - self._backlog_of_ms < ASKED_EVERY_MS:
            self._backlog_of_ms = now_ms
            try:
                self._backlog = self._asked_for(self._commit_ts)
            except (BinlogdError, OSError) as error:
                log.warning("backlog_not_known", cause=str(error))
                self._backlog = (None, None)
        return self._backlog

    def _asked_for(self, after: Tso) -> tuple[float | None, int | None]:
        source = open_input(self._asked)
        newest = source.resolved_ts()
        if newest <= after or not source.has_any(after, newest):
            return 0.0, 0
        return behind_s(after, newest), source.transactions(after, newest)


@contextmanager
def served(addr: str, figures: PipelineFigures) -> Iterator[tuple[str, int]]:
    """Answers GET /metrics there meanwhile, to one at a time; where it listens. Raises
    ConfigError."""

    class Answer(BaseHTTPRequestHandler):
        timeout = REQUEST_S

        def do_GET(self) -> None:
            if self.path != "/metrics":
                self.send_error(404, "ask for /metrics")
                return
            content = figures.text()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *words: object) -> None:  # noqa: A002 - the library's
            log.debug("asked_for_metrics", line=format % words)

    class Server(TCPServer):
        address_family = socket.AF_INET6 if ":" in addr.rpartition(":")[0] else socket.AF_INET
        allow_reuse_address = True

        def handle_error(self, *_: object) -> None:
            error = sys.exception()
            told = log.debug if isinstance(error, OSError) else log.error  # who hangs up, or more
            told("metrics_not_told", cause=repr(error))

    try:
        server = Server(address_of("--metrics-addr", addr, port_min=0), Answer)
    except OSError as error:
        raise ConfigError(f"--metrics-addr {addr}: {error.strerror or error}") from error
    with server:
        host, port = server.server_address[:2]
        thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
        thread.start()
        log.info("metrics_served", addr=shown_address((str(host), port)))
        try:
            yield str(host), port
        finally:
            server.shutdown()
            thread.join()
