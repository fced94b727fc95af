"""Log lines and metrics as operators and their tools read them."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import structlog
from prometheus_client.parser import text_string_to_metric_families

from binlogd.telemetry.exposition import Exposition, process_metrics
from binlogd.telemetry.histogram import Histogram, doubling
from binlogd.telemetry.logs import Lines, Seldom, set_up_logging


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = logging.getLogger().handlers[:]
    yield
    structlog.reset_defaults()
    logging.getLogger().handlers[:] = before


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_is_one_json_line() -> None:
    stream = io.StringIO()
    set_up_logging("info", Lines(stream))
    structlog.get_logger("x").info("segment_sealed", fid=3, size_bytes=17)
    (event,) = lines(stream)
    assert event.pop("timestamp")
    assert event == {"event": "segment_sealed", "level": "info", "fid": 3, "size_bytes": 17}


def test_events_below_the_level_are_not_written() -> None:
    stream = io.StringIO()
    set_up_logging("warn", Lines(stream))
    structlog.get_logger("x").info("segment_sealed")
    structlog.get_logger("x").warning("write_was_slow")
    assert [event["event"] for event in lines(stream)] == ["write_was_slow"]


def test_libraries_log_in_the_same_form_but_only_warnings() -> None:
    stream = io.StringIO()
    set_up_logging("debug", Lines(stream))
    logging.getLogger("grpclib.server").info("Request was cancelled")
    logging.getLogger("grpclib.server").error("Server error")
    (event,) = lines(stream)
    assert (event["event"], event["level"], event["logger"]) == (
        "Server error",
        "error",
        "grpclib.server",
    )


def test_an_exception_stays_on_its_line() -> None:
    stream = io.StringIO()
    set_up_logging("info", Lines(stream))
    try:
        raise ValueError("two\nlines")
    except ValueError:
        structlog.get_logger("x").exception("pull_failed")
    (event,) = lines(stream)
    assert "ValueError: two\nlines" in str(event["exception"])


def test_a_terminal_gets_words_not_json() -> None:
    stream = Terminal()
    set_up_logging("info", Lines(stream))
    structlog.get_logger("x").info("server_started", port=1)
    assert "server_started" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


def test_lines_of_several_threads_stay_apart(tmp_path: Path) -> None:
    """structlog and logging have a lock each."""
    with (tmp_path / "log").open("w") as stream:
        set_up_logging("info", Lines(stream))
        ours, others = structlog.get_logger("x"), logging.getLogger("library")

        def both(at: int) -> None:
            for _ in range(200):
                ours.info("long", text="x" * 3_000) if at % 2 else others.error("y" * 3_000)

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(both, range(4)))
    found = (tmp_path / "log").read_text().splitlines()
    assert len(found) == 800
    assert {json.loads(line)["level"] for line in found} == {"info", "error"}


def test_counters_keep_the_names_of_the_original() -> None:
    out = Exposition()
    out.counter("binlog_pump_loss_binlog_count", "Refused writes.", 3)
    out.counter("binlog_drainer_ddl_jobs_total", "DDL.", 1)
    assert out.text().decode() == (
        "# HELP binlog_pump_loss_binlog_count Refused writes.\n"
        "# TYPE binlog_pump_loss_binlog_count counter\n"
        "binlog_pump_loss_binlog_count 3\n"
        "# HELP binlog_drainer_ddl_jobs_total DDL.\n"
        "# TYPE binlog_drainer_ddl_jobs_total counter\n"
        "binlog_drainer_ddl_jobs_total 1\n"
    )


def test_a_histogram_is_cumulative_and_its_series_appear_with_the_first_observation() -> None:
    seen, unseen = Histogram(doubling(0.5, 3)), Histogram(doubling(0.5, 3))
    for value in (0.5, 0.6, 1.5, 99.0):
        seen.observe(value)
    out = Exposition()
    out.histogram(
        "rpc",
        "Seconds.",
        [({"l": "succ"}, seen.statistics()), ({"l": "fail"}, unseen.statistics())],
    )
    (family,) = text_string_to_metric_families(out.text().decode())
    assert [(s.name, s.labels.get("le"), s.value) for s in family.samples] == [
        ("rpc_bucket", "0.5", 1),
        ("rpc_bucket", "1.0", 2),
        ("rpc_bucket", "2.0", 3),
        ("rpc_bucket", "+Inf", 4),
        ("rpc_sum", None, 101.6),
        ("rpc_count", None, 4),
    ]


def test_label_values_are_escaped() -> None:
    out = Exposition()
    out.gauge("g", "G.", [({"reason": 'say "no"\\\n'}, 1.5)])
    (family,) = text_string_to_metric_families(out.text().decode())
    assert family.samples[0].labels == {"reason": 'say "no"\\\n'}


def test_the_process_is_measured_as_well() -> None:
    assert b"process_resident_memory_bytes" in process_metrics()


def test_what_a_stranger_can_cause_at_will_is_told_seldom_and_counted() -> None:
    seldom = Seldom(every_s=1.0)
    assert [seldom.due(now_s) for now_s in (5.0, 5.1, 5.9, 6.0, 6.5, 9.0, 11.0)] == [
        0,
        None,
        None,
        2,
        None,
        1,
        0,
    ]
