"""The configuration: strict, explained, and its sample never stale."""

from __future__ import annotations

import operator
import re
from pathlib import Path
from typing import get_type_hints

import msgspec
import pytest

from binlogd.errors import ConfigError
from binlogd.settings import config, sources
from binlogd.settings.config import Config
from binlogd.settings.effects import WITHOUT_EFFECT
from binlogd.settings.quantities import (
    Seconds,
    Size,
    kept_s,
    listen_address,
    pd_addresses,
    retention_s,
    size_bytes,
    wait_s,
)

ROOT = Path(__file__).parents[3]
CONFIG_DIR = ROOT / "config"
SAMPLE = CONFIG_DIR / "binlogd.toml"


def test_the_commented_sample_equals_the_defaults() -> None:
    assert config.load(CONFIG_DIR / "binlogd.toml") == config.Config()


def test_the_commented_sample_shows_every_key() -> None:
    text = (CONFIG_DIR / "binlogd.toml").read_text()

    def keys(table: type[msgspec.Struct]) -> list[str]:
        return [field.encode_name for field in msgspec.structs.fields(table)]

    tables: list[type[msgspec.Struct]] = [
        config.Config,
        config.UpstreamConfig,
        config.PumpConfig,
        config.DrainerConfig,
        config.SyncerConfig,
        config.MigrateRuleConfig,
        config.FilterRuleConfig,
        config.RelayConfig,
        config.DownstreamConfig,
        config.CheckpointConfig,
    ]
    missing = [key for table in tables for key in keys(table) if key not in text]
    assert missing == []


def test_the_sample_explains_each_key_marks_ten_and_has_those_without_effect_at_its_end() -> None:
    text = (CONFIG_DIR / "binlogd.toml").read_text()
    box, _, keys = text.partition("\ndata-dir = ")
    keys, _, idle = f"data-dir = {keys}".partition("# --- Accepted, without effect ---")
    table, marked = "", set()
    for line in keys.splitlines():
        if found := re.match(r"\[(.+)\]", line):
            table = f"{found[1]}."
        elif found := re.match(r"(?:# )?([\w-]+) = [^#]+(# ★)?( # )?", line):
            assert " # " in line, line
            marked |= {table + found[1]} if found[2] else set()
    assert len(marked) == 10
    assert marked == set(re.findall(r"(?:^#   |  )([\w.-]+)(?=  )", box, re.MULTILINE))
    listed = set(re.findall(r"^# ([\w.-]+) = ", idle, re.MULTILINE))
    assert listed == {*WITHOUT_EFFECT, "syncer.to.zookeeper-addrs"}
    assert not listed & set(re.findall(r"^([\w-]+) = ", keys, re.MULTILINE))


def test_the_example_is_valid() -> None:
    assert config.load(CONFIG_DIR / "example.toml").syncer.db_type == "mysql"


def test_the_mark_that_an_editor_writes_before_a_file_is_no_text_of_it(tmp_path: Path) -> None:
    file = tmp_path / "binlogd.toml"
    file.write_bytes(b'\xef\xbb\xbfaddr = "127.0.0.1:1"\n')
    assert config.load(file).addr == "127.0.0.1:1"


def test_every_key_that_takes_the_place_of_one_of_a_pump_is_there() -> None:
    page = (ROOT / "docs" / "reference" / "pump.md").read_text()
    rows = page.split("## Its configuration")[1].split("##")[0].splitlines()
    named = [key for row in rows if "|" in row for key in re.findall(r"`(.+?)`", row.split("|")[2])]
    assert len(named) > 15
    for key in named:
        value: object = config.parse("", "a test")
        for word in key.replace("-", "_").split("."):
            value = getattr(value, word)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[pmup]\n", "line 1: pmup: unknown key; did you mean pump?"),
        (
            "[pump]\nshard = 3",
            "line 2: pump.shard: unknown key; did you mean pump.shards?",
        ),
        ('[pump]\nshards = "a"', 'line 2: pump.shards: must be a whole number, as in 4; it is "a"'),
        ("[pump]\nshards = 0", "pump.shards: must be above 0"),
        ("[pump]\nfake-binlog-interval = 0", "pump.fake-binlog-interval: must be above 0"),
        (
            'log-level = "loud"',
            'log-level: must be one of "debug", "info", "warn", "error"; it is "loud"',
        ),
        ("[drainer]\ninitial-commit-ts = -1", "initial-commit-ts: must be a commit_ts"),
        (f"[drainer]\ninitial-commit-ts = {1 << 63}", "initial-commit-ts: must be a commit_ts"),
        ("[syncer]\nignore-txn-commit-ts = [5, 0]", "a list, as in [412518831548007863]"),
        ("[syncer]\nignore-txn-commit-ts = [-1]", "of commit_ts; it is [-1]"),
        (f"[syncer]\nignore-txn-commit-ts = [{1 << 63}]", "syncer.ignore-txn-commit-ts: must be"),
        ("[upstream]\ncluster-id = -1", "cluster-id: must be a whole number, 0 or more"),
        ("[export]\nmemory = -1", "export.memory: must be a number of bytes"),
        ("[archive]\ntail-interval = -1", "archive.tail-interval: must be a number of seconds"),
        ("[pump]\ngc = 0", "pump.gc: 0: must be above 0"),
        ('[pump]\nmemory-budget = "31 MiB"', "32505856 bytes are less than twice 16777216"),
        ('[pump]\ngc = "7x"', 'use 7 or "7d" for 7 days, "7h" for 7 hours'),
        ('addr = "8250"', 'expected "host:port"'),
        ('[upstream]\npumps = ["there"]', 'upstream.pumps: expected "host:port", got "there"'),
        ('[upstream]\npumps = ["a:1", "a:1"]', 'upstream.pumps: "a:1" stands there twice'),
        ('[drainer]\ntrash-schema = "t"', 'goes with db-type "mysql" only'),
        (
            '[drainer]\ntrash-schema = "tidb_binlog"\n[syncer]\ndb-type = "mysql"',
            "must be another one than syncer.to.checkpoint.schema",
        ),
        ('[drainer]\ntrash-retention = "2x"', 'drainer.trash-retention: "2x"'),
        (
            '[upstream]\nkind = "xyz"',
            'upstream.kind: must be one of "standalone", "tidb", "pd"; it is "xyz"',
        ),
        ('[upstream]\nkind = "pd"', "upstream.pd-urls: is missing"),
        ('[upstream]\nkind = "tidb"', "upstream.tidb: is missing"),
        ('[upstream]\nkind = "pd"\npd-urls = "http://a:1,b"', 'expected "host:port", got "b"'),
        (
            '[upstream]\nkind = "pd"\npd-urls = "a:1"\ntso = "clock"',
            'upstream.tso: goes with kind = "standalone" only',
        ),
        (
            '[upstream]\nkind = "tidb"\ntidb = ["a:1", "b:1"]\ntidb-status = ["a:2"]',
            "upstream.tidb-status: 1 status ports for 2 servers",
        ),
        (
            "[syncer]\nload-schema-snapshot = true",
            'syncer.load-schema-snapshot: goes with upstream.kind = "pd" only',
        ),
        ('[[syncer.ignore-table]]\ndb-nam = "x"', "did you mean syncer.ignore-table.db-name?"),
        (
            '[[syncer.table-migrate-rule]]\nsource = {schema = "s"}\nbinlog-filter-rule = ["r"]',
            "event filter rule name r not found; write a table [syncer.binlog-filter-rule.r]",
        ),
        (
            '[syncer.binlog-filter-rule.r]\nignore-evnt = ["all"]',
            "did you mean syncer.binlog-filter-rule.r.ignore-event?",
        ),
        ("x =", "is not TOML"),
        ('data-dir = "a\\u0000b"', "data-dir: holds a NUL"),
        ('[syncer.to]\npassword = "a\\u0000b"', "syncer.to.password: holds a NUL"),
        ("[syncer.to]\nport = 70000", "syncer.to.port: a port is 1 to 65535, got 70000"),
        ("[pump]\nsegment-size = 0", "pump.segment-size: must be above 0"),
        ('addr = "a:1', "a text lacks its closing quote"),
        ('addr = "a b:1"', 'addr: "a b" is neither an address nor the name of a host'),
        ('addr = "a..b:1"', 'addr: "a..b" is neither'),
        ('addr = "[::1:1"', 'addr: "[::1" is neither'),
        ('addr = "host:x:1"', 'addr: "host:x" is neither'),
        ('addr = "*:1"\nadvertise-addr = "*:1"', 'advertise-addr: nobody can reach "*"'),
        (f'[upstream]\nkind = "pd"\npd-urls = "{"x" * 64}:1"', 'upstream.pd-urls: "xxx'),
        ('[upstream]\npumps = ["\u202e:1"]', "upstream.pumps:"),
        ('[syncer.to]\nhost = "db:3306"', 'syncer.to.host: "db:3306" is neither an address nor'),
        ('[syncer.to.checkpoint]\nhost = "a..b"', 'syncer.to.checkpoint.host: "a..b" is neither'),
        ('data-dir = ""', "data-dir: is empty"),
        ("[syncer.to.checkpoint]\nschema = ''", "syncer.to.checkpoint.schema: is empty"),
        ("[syncer.to.checkpoint]\ntable = 'Shapes'", "Shapes is a table of binlogd's own there"),
        (
            '[drainer]\ntrash-schema = "TiDB_binlog"\n[syncer]\ndb-type = "mysql"',
            "must be another one than syncer.to.checkpoint.schema",
        ),
        ('node-id = "a/b"', 'node-id "a/b": must not contain a slash'),
        ('[drainer]\nnode-id = "a/b"', 'drainer.node-id "a/b": must not contain a slash'),
        (f"[syncer]\nchannel-id = {1 << 63}", "syncer.channel-id: at most 9223372036854775807"),
        (
            f"[upstream]\ncluster-id = {1 << 64}",
            "upstream.cluster-id: at most 18446744073709551615",
        ),
        (f"[syncer.to]\npartitions = {1 << 31}", "syncer.to.partitions: at most 2147483647"),
        ('[upstream]\nschema-history = "ftp://h/x"', "schema-history: expected a URL, as in"),
        ('[upstream]\nschema-history = "http://a..b/x"', 'schema-history: "a..b" is neither'),
        ('[upstream]\nschema-history = "http://[::1/x"', "schema-history: Invalid IPv6 URL"),
        ('[upstream]\nschema-history = "http://h:99999/x"', "schema-history: Port out of range"),
        ('[telemetry]\notlp-endpoint = "collector"', "telemetry.otlp-endpoint: expected a URL"),
        (f"x = {'[' * 2000}{']' * 2000}", "is not TOML: maximum recursion depth exceeded"),
        (f"{'.'.join('a' * 2000)} = 1", "is not TOML: maximum recursion depth exceeded"),
        ("[pump]\nshards = 1025", "pump.shards: at most 1024, got 1025"),
        ("[syncer]\nworker-count = 1000000", "syncer.worker-count: at most 1024, got 1000000"),
        ('addr = "a:999999"', "addr: a port is 0 to 65535"),
        ("pump = 3", "line 1: pump: must be a table, which begins with [pump]"),
        ("[syncer.ignore-table]", "must be a table, which begins with [[syncer.ignore-table]]"),
        *(
            (f'[syncer.to]\nprotocol = "canal-json"\ntopic-name = "a{field}"', "only {schema} and")
            for field in ("{schema!r}", "{table:>99999999}", "{schema[0]}", "{}", "{schema")
        ),
        ("[upstream]\nembedded-pd = 1", "upstream.embedded-pd: must be true or false; it is 1"),
        (
            "[[syncer.ignore-table]]\n[[syncer.ignore-table]]\ndb_name = 1",
            "line 3: syncer.ignore-table.db-name: must be text",
        ),
        ("[syncer.to]\npassword = 1234", "syncer.to.password: must be text in quotes"),
        ('[syncer.relay]\nformat = "original"', "a Go Drainer is restored from, and not written"),
        ('[syncer.relay]\nlog-dir = "relay"', 'goes with db-type "mysql" or "tidb" only'),
    ],
)
def test_a_wrong_file_is_refused_with_file_key_and_reason(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        config.parse(text, "binlogd.toml")
    assert str(refused.value).startswith("binlogd.toml: ")
    assert said in str(refused.value)


BROKERS = "b1, b2:9093, ::1, 2001:db8::1, [::1]:9092, 10.0.0.1"


def test_brokers_are_names_or_addresses_with_or_without_a_port() -> None:
    def of(text: str) -> config.Config:
        return config.parse(
            f'[syncer]\ndb-type = "kafka"\n[syncer.to]\nkafka-addrs = "{text}"', "test"
        )

    assert of(BROKERS).syncer.to.kafka_addrs == BROKERS
    for wrong in ("", " , ", "http://b1:9092", "b1:9092,a..b", "b1:0", "b1:", "b:c:1"):
        with pytest.raises(ConfigError, match=r"syncer\.to\.kafka-addrs: "):
            of(wrong)


def test_all_wrong_keys_are_told_at_once_with_their_lines_and_no_secret() -> None:
    text = '# a file\nadr = "a:1"\n[pump]\nshards = "four"\n[syncer.to]\npassword = 1234\n'
    with pytest.raises(ConfigError) as refused:
        config.parse(text, "b.toml")
    head, *lines = str(refused.value).splitlines()
    assert head == "b.toml: 3 keys are wrong"
    assert [line.split(":")[0].strip() for line in lines] == ["line 2", "line 4", "line 6"]
    assert "1234" not in str(refused.value)


@pytest.mark.parametrize(
    "given",
    [
        '"http://a:2379,https://b:2379/, c:1"',
        '["a:2379", "http://b:2379", "c:1"]',
    ],
)
def test_pds_are_a_list_or_text_with_commas_and_a_scheme_says_nothing(given: str) -> None:
    found = config.parse(f'[upstream]\nkind = "pd"\npd-urls = {given}', "binlogd.toml").upstream
    assert pd_addresses(found.pd_urls) == [("a", 2379), ("b", 2379), ("c", 1)]


def test_a_tidb_has_its_status_port_on_the_same_host_where_none_is_named() -> None:
    text = '[upstream]\nkind = "tidb"\ntidb = ["a:4000", "[::1]:4001"]'
    found = config.parse(text, "binlogd.toml").upstream
    assert config.tidb_addresses(found) == [
        (("a", 4000), ("a", 10080)),
        (("::1", 4001), ("::1", 10080)),
    ]


def test_the_syncer_part_of_a_go_drainer_is_taken_unchanged() -> None:
    pasted = """
[syncer]
sql-mode = "STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION"
ignore-schemas = "INFORMATION_SCHEMA,PERFORMANCE_SCHEMA,mysql"
txn-batch = 20
worker-count = 16
enable-dispatch = true
safe-mode = false
db-type = "mysql"
replicate-do-db = ["~^b.*", "s1"]
[syncer.relay]
log-dir = "relay"
max-file-size = 10485760
[[syncer.replicate-do-table]]
db-name = "test"
tbl-name = "log"
[[syncer.ignore-table]]
db-name = "test"
tbl-name = "~^a.*"
[[syncer.table-migrate-rule]]
binlog-filter-rule = ["no-drops"]
[syncer.table-migrate-rule.source]
schema = "test"
table = "log_*"
[syncer.binlog-filter-rule.no-drops]
ignore-event = ["drop table", "delete"]
ignore-sql = ["^alter"]
[syncer.to]
host = "127.0.0.1"
user = "root"
password = ""
port = 3306
[syncer.to.checkpoint]
schema = "tidb_binlog"
"""
    syncer = config.parse(pasted, "drainer.toml").syncer
    assert syncer.ignore_table[0].tbl_name == "~^a.*"
    assert syncer.relay.log_dir == "relay"
    assert syncer.table_migrate_rule[0].source.table == "log_*"
    assert syncer.binlog_filter_rule["no-drops"].ignore_event == ("drop table", "delete")


@pytest.mark.parametrize(
    ("text", "size"), [("10 GiB", 10 << 30), ("1k", 1000), ("512MiB", 512 << 20), ("7", 7), ("", 0)]
)
def test_sizes_are_read_with_their_units(text: str, size: int) -> None:
    assert size_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["1 iB", "1 ib", "1.2.3", ".", "8 EiB", "9" * 400, "9" * 400 + " GiB"]
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="size "):
        size_bytes(text)


@pytest.mark.parametrize(
    "key", ["pump.gc", "pump.stop-write-at-available-space", "pump.fake-binlog-interval"]
)
@pytest.mark.parametrize("digits", [30, 400, 300_000])  # what is quadratic would take an hour
@pytest.mark.parametrize("form", ["{}", '"{}"', '"{}h"', '"{}d"', '"{} GiB"'])
def test_a_number_that_no_key_can_mean_is_refused(key: str, digits: int, form: str) -> None:
    table, name = key.split(".")
    with pytest.raises(ConfigError):
        config.parse(f"[{table}]\n{name} = {form.format('9' * digits)}\n", "t")
    with pytest.raises(ConfigError):
        sources.read(None, {sources.variable_of(key): form.format("9" * digits).strip('"')})


def test_a_port_of_thousands_of_digits_is_refused() -> None:
    with pytest.raises(ConfigError, match="a port is 0 to 65535"):
        config.parse(f'addr = "127.0.0.1:{"9" * 5_000}"\n', "t")


def _keys_of(kind: object, table: type[msgspec.Struct], prefix: str = "") -> list[str]:
    found = []
    for name, each in get_type_hints(table, include_extras=True).items():
        key = f"{prefix}{name.replace('_', '-')}"
        if isinstance(each, type) and issubclass(each, msgspec.Struct):
            found += _keys_of(kind, each, f"{key}.")
        elif each == kind:
            found.append(key)
    return found


def _value(parsed: Config, key: str) -> object:
    return operator.attrgetter(key.replace("-", "_"))(parsed)


@pytest.mark.parametrize("key", _keys_of(Size, Config))
def test_every_size_is_a_number_or_text_with_a_unit_also_from_a_variable(key: str) -> None:
    table, _, name = key.rpartition(".")
    written, size = ("512 MiB", 512 << 20) if name == "max-message-size" else ("3 GiB", 3 << 30)
    assert _value(config.parse(f'[{table}]\n{name} = "{written}"\n', "t"), key) == size
    for text in (written, str(size)):
        assert _value(sources.read(None, {sources.variable_of(key): text}).config, key) == size
    with pytest.raises(ConfigError, match=f"{name}: must be a number of bytes, or text as in"):
        config.parse(f'[{table}]\n{name} = "3 apples"\n', "t")


@pytest.mark.parametrize("key", _keys_of(Seconds, Config))
def test_every_duration_is_a_number_or_text_with_a_unit_also_from_a_variable(key: str) -> None:
    table, _, name = key.rpartition(".")
    assert _value(config.parse(f'[{table}]\n{name} = "1m30s"\n', "t"), key) == 90
    assert _value(sources.read(None, {sources.variable_of(key): "90"}).config, key) == 90
    assert _value(sources.read(None, {sources.variable_of(key): "1m30s"}).config, key) == 90
    with pytest.raises(ConfigError, match=f"{name}: must be a number of seconds, or text as in"):
        config.parse(f'[{table}]\n{name} = "soon"\n', "t")


def test_no_key_that_is_a_size_or_a_duration_takes_numbers_alone() -> None:
    """By the words with which the sample explains it."""
    of_a_unit = {*_keys_of(Size, Config), *_keys_of(Seconds, Config)}
    table, plain = "", []
    for line in SAMPLE.read_text().splitlines():
        if header := re.match(r"\[([\w.-]+)\]", line):
            table = f"{header[1]}."
        elif key := re.match(r"([\w-]+) = [\d.]+ +# .*\b(bytes|seconds|days)\b", line):
            plain.append(f"{table}{key[1]}")
    days = ["pump.gc", "syncer.to.retention-time", "archive.keep"]
    assert [key for key in plain if key not in of_a_unit] == days


@pytest.mark.parametrize("text", ["7", '"7"', '"7d"', '"168h"'])
def test_finished_files_are_kept_for_days_or_a_duration(text: str) -> None:
    found = config.parse(f"[syncer.to]\nretention-time = {text}\n", "t").syncer.to.retention_time
    assert kept_s("syncer.to.retention-time", found) == 7 * 86400
    assert kept_s("syncer.to.retention-time", 0) == 0
    with pytest.raises(ConfigError, match=r"syncer\.to\.retention-time: -1: must be above 0"):
        config.parse("[syncer.to]\nretention-time = -1\n", "t")


@pytest.mark.parametrize(("text", "seconds"), [(7, 604800), ("7", 604800), ("1h30m", 5400)])
def test_retention_is_days_or_a_duration(text: str | int, seconds: float) -> None:
    assert retention_s("pump.gc", text) == seconds


@pytest.mark.parametrize(
    ("text", "seconds"), [("10m", 600), ("1h30m", 5400), ("1.5s", 1.5), ("10", 10), ("0.5", 0.5)]
)
def test_a_command_waits_for_seconds_or_a_duration(text: str, seconds: float) -> None:
    assert wait_s("--wait", text) == seconds


@pytest.mark.parametrize("text", ["", "s", "1.2.3s", "-5m", "10 m", "5d", "1e3"])
def test_a_wait_that_is_none_is_refused_with_the_units(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--wait: .*a unit: 500ms, 30s, 10m or 1h30m"):
        wait_s("--wait", text)


# --- what others reach a node by -------------------------------------------------------------


def test_a_node_is_advertised_by_its_address_or_by_another_one() -> None:
    assert config.advertised(config.parse('addr = "10.0.0.1:8250"', "t")) == "10.0.0.1:8250"
    text = 'addr = "0.0.0.0:8250"\nadvertise-addr = "pump.example:9000"'
    assert config.advertised(config.parse(text, "t")) == "pump.example:9000"


def test_an_address_that_stands_for_all_is_advertised_by_the_hosts_name() -> None:
    for addr in ("0.0.0.0:8250", "[::]:8250"):
        host, port = listen_address(config.advertised(config.Config(addr=addr)))
        assert host not in ("0.0.0.0", "::", "")
        assert port == 8250


@pytest.mark.parametrize(
    "advertised", ["0.0.0.0:8250", ":8250", "[::]:1", "host", "http://pump-a:8250"]
)
def test_what_nobody_can_reach_is_not_advertised(advertised: str) -> None:
    with pytest.raises(ConfigError, match="advertise-addr"):
        config.parse(f'advertise-addr = "{advertised}"', "t")


def test_the_halves_cannot_have_one_name() -> None:
    with pytest.raises(ConfigError, match="must differ"):
        config.parse('node-id = "a"\n[drainer]\nnode-id = "a"', "t")


# --- roles -----------------------------------------------------------------------------------

PD = '[upstream]\nkind = "pd"\npd-urls = "http://127.0.0.1:2379"\n'


def test_a_node_has_both_roles_unless_it_is_told_otherwise() -> None:
    assert config.parse("", "test").roles == ("pump", "drainer")
    assert config.parse(f'roles = ["drainer"]\n{PD}', "test").roles == ("drainer",)
    assert config.parse('roles = ["pump"]\n', "test").roles == ("pump",)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("roles = []\n", "roles: is empty"),
        ('roles = ["pumps"]\n', "roles"),
        (f'roles = ["drainer"]\n{PD}[drainer]\nenabled = false\n', "nothing is left"),
        ('roles = ["drainer"]\n', "upstream.pumps"),
        ('roles = ["drainer"]\n[upstream]\npumps = ["a:1"]\n', "upstream.cluster-id"),
    ],
)
def test_roles_that_leave_nothing_to_do_are_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        config.parse(text, "test")


def test_a_drainer_alone_can_be_told_its_pumps() -> None:
    text = 'roles = ["drainer"]\n[upstream]\ncluster-id = 7\npumps = ["a:1", "b:1"]\n'
    assert config.parse(text, "test").upstream.pumps == ("a:1", "b:1")
