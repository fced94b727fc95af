"""The metrics of a real process: every name of the original is there, or said to be left out."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.appliance import Appliance, into_mariadb
from tests.support.deployment import Selector, expressions, selectors
from tests.support.mariadb import MariaDb
from tests.support.pipeline_metrics import exposed
from tests.support.recordings_reader import history
from tests.workload.recording import feed_recording

ROOT = Path(__file__).parents[2]
RECORDING = ROOT / "tests" / "recordings" / "few"
DOC = (ROOT / "docs" / "METRICS.md").read_text()
pytestmark = pytest.mark.xdist_group("test_metrics.py")  # one process is asked for all of them

SECONDS, COUNTER, GAUGE = "histogram", "counter", "gauge"
ORIGINAL: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "binlog_pump_rpc_duration_seconds": (SECONDS, "method", ("WriteBinlog",)),
    "binlog_pump_loss_binlog_count": (COUNTER, "", ()),
    "binlog_pump_detected_drainer_binlog_purge_count": (COUNTER, "id", ()),
    "binlog_pump_storage_gc_ts": (GAUGE, "", ()),
    "binlog_pump_storage_done_gc_ts": (GAUGE, "", ()),
    "binlog_pump_storage_deleted_kv_total": (COUNTER, "", ()),
    "binlog_pump_storage_storage_size_bytes": (GAUGE, "type", ("capacity", "available")),
    "binlog_pump_storage_max_commit_ts": (GAUGE, "", ()),
    "binlog_pump_storage_query_tikv_count": (COUNTER, "", ()),
    "binlog_pump_storage_error_count": (COUNTER, "type", ("write_binlog",)),
    "binlog_pump_storage_write_binlog_size": (SECONDS, "type", ("single", "batch")),
    "binlog_pump_storage_write_binlog_duration_time": (
        SECONDS,
        "type",
        ("single", "batch", "to_disk", "fsync", "rotate"),
    ),
    "binlog_pump_storage_slow_chaser_count": (
        COUNTER,
        "type",
        ("turned_on", "turned_off", "catch_up", "recovery"),
    ),
    "binlog_drainer_slow_chaser_catchup_time_seconds": (SECONDS, "", ()),
    "binlog_drainer_pump_position": (GAUGE, "nodeID", ("shard-0",)),
    "binlog_drainer_ddl_jobs_total": (COUNTER, "", ()),
    "binlog_drainer_error_count": (COUNTER, "type", ("unmarshal_binlog",)),
    "binlog_drainer_disorder_binlog_count": (COUNTER, "", ()),
    "binlog_drainer_event": (
        COUNTER,
        "type",
        ("Insert", "Update", "Delete", "DDL", "savepoint"),
    ),
    "binlog_drainer_checkpoint_tso": (GAUGE, "", ()),
    "binlog_drainer_checkpoint_delay_seconds": (SECONDS, "", ()),
    "binlog_drainer_execute_duration_time": (SECONDS, "", ()),
    "binlog_drainer_query_duration_time": (SECONDS, "type", ("exec", "commit")),
    "binlog_drainer_binlog_reach_duration_time": (SECONDS, "nodeID", ("shard-0",)),
    "binlog_drainer_read_binlog_size": (SECONDS, "nodeID", ("shard-0",)),
    "binlog_drainer_queue_size": (GAUGE, "name", ("syncer_input",)),
    "binlog_binlogfile_write_binlog_size": (SECONDS, "label", ("local",)),
    "binlog_binlogfile_write_binlog_duration_time": (SECONDS, "label", ("local",)),
    "binlog_binlogfile_read_binlog_duration_time": (SECONDS, "label", ()),
    "binlog_binlogfile_corruption_binlog_count": (COUNTER, "", ()),
}
"""Name to kind, label, and the values that this test makes appear."""


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory, mariadb_server: MariaDb) -> str:
    mariadb_server.reset()
    ignored = (
        'ignore-schemas = "INFORMATION_SCHEMA,PERFORMANCE_SCHEMA,mysql,keys_tidb,keys_wrong"\n'
    )
    machine = Appliance(
        tmp_path_factory.mktemp("metrics"),
        history=history(RECORDING),
        syncer=into_mariadb(mariadb_server, extra=ignored),
    )
    with machine.config_file.open("a") as file:
        file.write(
            'segment-size = "16 KiB"\n[archive]\nurl = "archive"\n[export]\ndir = "exports"\n'
            '[telemetry]\notlp-endpoint = "http://127.0.0.1:1"\n'
        )
    try:
        machine.start()
        asyncio.run(feed_recording(RECORDING, machine.target))
        machine.wait_until_applied(0)
        with urllib.request.urlopen(f"http://127.0.0.1:{machine.port}/metrics") as answer:
            said: str = answer.read().decode()
    finally:
        machine.close()
    return said


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> str:
    return exposed(tmp_path_factory.mktemp("pipeline"))


def left_out() -> str:
    return DOC.split("## Left out, and why")[1].split("##")[0]


@pytest.mark.parametrize("name", ORIGINAL)
def test_a_name_of_the_original_is_exposed_or_said_to_be_left_out(name: str, scraped: str) -> None:
    kind, label, values = ORIGINAL[name]
    if f"# TYPE {name} " not in scraped:
        assert f"`{name}`" in left_out()
        return
    assert f"`{name}`" in DOC.split("## Left out")[0]
    assert f"# TYPE {name} {kind}\n" in scraped
    lines = [line for line in scraped.splitlines() if re.match(rf"{name}(_count)?[{{ ]", line)]
    for value in values:
        assert any(f'{label}="{value}"' in line for line in lines), f"no {label}={value}"


@pytest.mark.parametrize("of", ["scraped", "pipeline"])
def test_the_text_is_what_prometheus_reads(of: str, request: pytest.FixtureRequest) -> None:
    families = list(text_string_to_metric_families(request.getfixturevalue(of)))
    assert len({family.name for family in families}) == len(families), "each name once"
    for family in families:
        if family.type == "histogram":
            counts = [each.value for each in family.samples if each.name.endswith("_bucket")]
            assert all(count >= 0 for count in counts)


def test_what_the_original_lacks_is_documented(scraped: str, pipeline: str) -> None:
    of_pipelines = re.findall(r"^# TYPE (binlogd_\w+) ", pipeline, re.MULTILINE)
    written = DOC.split("## Metrics of a pipeline")[1].split("##")[0]
    assert of_pipelines == re.findall(r"^\| `(binlogd_pipeline_\w+)`", written, re.MULTILINE)
    own = DOC.split("## Metrics of binlogd")[1]
    known = [word.split("{")[0] for word in re.findall(r"`([a-z_{}=\"]+)`", own)]
    exposed = re.findall(r"^# TYPE (binlogd_\w+) ", scraped, re.MULTILINE)
    missing = [name for name in exposed if not any(name.endswith(word) for word in known)]
    assert missing == [], "not in docs/METRICS.md"


def test_the_rows_of_the_recording_are_counted(scraped: str) -> None:
    said = dict(line.rsplit(" ", 1) for line in scraped.splitlines() if not line.startswith("#"))
    assert int(said['binlog_drainer_event{type="Insert"}']) > 100
    assert int(said['binlog_drainer_event{type="Delete"}']) > 10
    assert said['binlog_drainer_event{type="DDL"}'] == said["binlog_drainer_ddl_jobs_total"]
    single = said['binlog_pump_storage_write_binlog_size_count{type="single"}']
    written = [v for k, v in said.items() if k.startswith("binlogd_shard_written_records{")]
    assert int(single) == sum(map(int, written))
    capacity = said['binlog_pump_storage_storage_size_bytes{type="capacity"}']
    assert int(capacity) > int(said['binlog_pump_storage_storage_size_bytes{type="available"}'])
    assert float(said['binlogd_shard_watermark_lag_seconds{shard="shard-0"}']) == 0


FROM_PROMETHEUS = {"instance", "job"}
"""Labels that a scrape adds."""
WHEN_IT_HAPPENS = {
    "binlogd_drainer_retries_by_kind",
    "binlogd_exports_finished",
    "binlogd_certificate_expires_seconds",
}
"""A series that begins with its first value, which this test does not bring about."""


@pytest.mark.parametrize(("where", "expression"), list(expressions()))
def test_what_a_rule_or_panel_reads_is_exposed(
    where: str, expression: str, scraped: str, pipeline: str
) -> None:
    for selector in selectors(expression):
        said = pipeline if selector.metric.startswith("binlogd_pipeline_") else scraped
        assert is_exposed(selector, said), f"{where}: {selector}"


def is_exposed(selector: Selector, scraped: str) -> bool:
    """With a series that has the labels, and the values that are asked for."""
    if selector.metric == "up":  # Prometheus' own, of each scrape
        return dict(selector.equal).keys() <= FROM_PROMETHEUS
    family = selector.metric.removesuffix("_bucket")
    if family in WHEN_IT_HAPPENS:
        return f"# TYPE {family} " in scraped
    series = re.findall(rf"^{selector.metric}(?:\{{(.*)\}})? ", scraped, re.MULTILINE)
    labels = {label for label in selector.labels if label not in FROM_PROMETHEUS}
    return any(
        all(f'{label}="' in each for label in labels)
        and all(f'{label}="{value}"' in each for label, value in selector.equal)
        for each in series
    )
