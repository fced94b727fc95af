"""Every key of the configuration is asked for by a part of the node, or says that it does nothing.

The configuration is watched while a node is put together from it: what nobody asks for is not in
force. Only what parts ask counts: not the checks of the configuration itself, nor what shows it.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from binlogd import app
from binlogd.drainer.measures import DrainerMeasures
from binlogd.errors import ConfigError, UpstreamUnavailable
from binlogd.host.disk import PosixDisk
from binlogd.node import into_kafka
from binlogd.node.assembly import identity, make_drainer, make_sink
from binlogd.node.reloading import Reloading
from binlogd.node.upstreams import look, open_upstream
from binlogd.offline_commands import open_store
from binlogd.settings import config, sources
from binlogd.settings.effects import flattened, without_effect
from binlogd.settings.setup import Setup, server_tls
from binlogd.upstream.pd.client import PdClient
from tests.support.certificates import Authority
from tests.support.ports import free_port

DB_TYPES = ("file", "pb", "mysql", "tidb", "sqlite", "kafka")
_CHECKS_AND_SHOWS = {"_check", "flattened", "__repr__"}
PROGRAM = Path(app.__file__).parent

EVERYTHING = """
data-dir = "{place}"
[syncer]
db-type = "{db_type}"
loopback-control = true
[[syncer.table-migrate-rule]]
source = {{schema = "a", table = "b"}}
target = {{schema = "c", table = "d"}}
binlog-filter-rule = ["r"]
[[syncer.replicate-do-table]]
db-name = "a"
tbl-name = "b"
[syncer.binlog-filter-rule.r]
ignore-event = ["delete"]
"""
OF_DATABASES = """
[syncer.relay]
log-dir = "relay"
[syncer.to]
sql-shape = "original"
[syncer.to.checkpoint]
host = "elsewhere"
"""
SOME_TABLES = """
[syncer.relay]
log-dir = "relay"
[[syncer.to.original-shape-table]]
db-name = "a"
tbl-name = "b"
[syncer.to.checkpoint]
host = "elsewhere"
"""
OF_KAFKA = """
[syncer.to]
protocol = "debezium"
kafka-sasl-mechanism = "PLAIN"
password = "p"
"""
OF_AVRO = """
[syncer.to]
protocol = "debezium-avro"
topic-name = "{schema}.{table}"
schema-registry = "http://registry:8081"
kafka-sasl-mechanism = "OAUTHBEARER"
kafka-token-url = "http://provider/token"
password = "p"
"""
OF_FILES = """
[syncer.to]
compression = "gzip"
"""


@dataclass
class Watched:
    """What was asked of a configuration, by dotted key; a row of a list by class and field."""

    keys: set[str] = field(default_factory=set)
    _names: dict[int, str] = field(default_factory=dict)
    _kept: list[object] = field(default_factory=list)

    def asked(self, table: Any, name: str, value: object) -> None:
        """Follows the tables from the outermost; their ids stay theirs while they are kept."""
        at = "" if isinstance(table, config.Config) else self._names.get(id(table))
        if at is None:
            at = f"{type(table).__name__}."
        if isinstance(value, msgspec.Struct):
            self._names[id(value)] = f"{at}{name}.".replace("_", "-")
            self._kept.append(value)
        elif not _is_checked_or_shown():
            self.keys.add(f"{at}{name}".replace("_", "-"))


def _is_checked_or_shown() -> bool:
    frame = sys._getframe(3)
    if "/binlogd/" not in frame.f_code.co_filename:
        return True
    while frame is not None and frame.f_code.co_name not in _CHECKS_AND_SHOWS:
        frame = frame.f_back  # type: ignore[assignment]  # None ends it
    return frame is not None


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    found = Watched()

    def asked(table: object, name: str) -> object:
        value = object.__getattribute__(table, name)
        if not name.startswith("_"):
            found.asked(table, name, value)
        return value

    monkeypatch.setattr(config._Table, "__getattribute__", asked, raising=False)
    return found


def setup_of(tmp_path: Path, text: str) -> Setup:
    """As a command reads it."""
    path = tmp_path / "binlogd.toml"
    path.write_text(text)
    return Setup(sources.read(path, {}).config)


def keys(*prefixes: str) -> Iterator[str]:
    yield from (key for key, _ in flattened(config.Config()) if key.startswith(prefixes))


_OTHERS: dict[str, object] = {
    "syncer.consistency": "transaction",
    "syncer.to.sql-shape": "original",
    "syncer.to.protocol": "canal-json",
    "syncer.relay.format": "original",
    "syncer.to.kafka-max-message-size": "2 MiB",
    "syncer.to.kafka-compression": "gzip",
    "syncer.to.kafka-sasl-mechanism": "SCRAM-SHA-256",
    "syncer.to.params": {"a": "b"},
    "syncer.to.original-shape-table": [{"db-name": "a", "tbl-name": "b"}],
    "syncer.ignore-table": [{"db-name": "a", "tbl-name": "b"}],
    "syncer.ignore-txn-commit-ts": [7],
    "syncer.sql-mode": "ANSI",
    "syncer.row-not-found": "count",
    "drainer.trash-retention": "3h",
    "upstream.kind": "tidb",
    "upstream.tso": "clock",
    "upstream.tidb": ["127.0.0.1:2"],
    "upstream.tidb-status": ["127.0.0.1:3"],
    "upstream.pd-urls": "127.0.0.1:4",
}


def other(key: str, value: Any) -> object:
    """A value that is not the default."""
    if key in _OTHERS:
        return _OTHERS[key]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return ["a"] if isinstance(value, tuple) else "x"


def fate(tree: dict[str, Any], key: str) -> str:
    """Of a key with another value in a configuration: refused, without effect, or in force."""
    *tables, name = key.split(".")
    tree = table = deepcopy(tree)
    for each in tables:
        table = table.setdefault(each, {})
    if name not in table:
        table[name] = other(key, dict(flattened(config.Config()))[key])
    try:
        found = config.from_tree(tree, "a test")
    except ConfigError:
        return "refused"
    is_without = key in dict(without_effect(found, config.Config()))
    return "without effect" if is_without else "in force"


_SECRET_PLACES = re.compile(r"(?<=password)-file$|(?<=admin-token)-file$|encrypted-(?=password$)")
"""What else is in the name of a key that holds a secret in the place of another."""
REFUSED_SWITCHES = {("refused", "drainer.trash-schema"), ("refused", "syncer.relay.log-dir")}
"""Asked for by every node: what goes with some downstreams only."""
ALONE = {
    "syncer.to.zookeeper-addrs",  # refused at any value
    "syncer.load-schema-snapshot",  # refused without a PD, asked for below
    "syncer.db-type",
}


def text_for(db_type: str, place: Path, *, is_other: bool) -> str:
    """As much as goes together with one downstream."""
    text = EVERYTHING.format(place=place, db_type=db_type)
    if db_type == "mysql":  # dropped tables are put aside, so names stay
        text = text.replace('target = {schema = "c", table = "d"}\n', "")
        text += '[drainer]\ntrash-schema = "trash"\n'
    if db_type in ("mysql", "tidb"):
        text += SOME_TABLES if is_other else OF_DATABASES
    if db_type == "kafka":
        if is_other:
            text = text.replace("\nloopback", "\nsync-ddl = false\nloopback")
        text += OF_AVRO if is_other else OF_KAFKA
    return text + (OF_FILES if db_type in ("file", "pb") else "")


@pytest.mark.parametrize(
    ("db_type", "is_other"),
    [*((each, False) for each in DB_TYPES), ("mysql", True), ("kafka", True)],
)
async def test_each_key_of_a_downstream_is_asked_for_or_does_nothing_and_says_so(
    tmp_path: Path,
    watched: Watched,
    monkeypatch: pytest.MonkeyPatch,
    db_type: str,
    *,
    is_other: bool,
) -> None:
    text = text_for(db_type, tmp_path, is_other=is_other)
    monkeypatch.setattr(into_kafka, "check_installed", lambda: None)  # keys, not libraries
    setup = setup_of(tmp_path, text)
    disk = PosixDisk(threads=1)
    async with AsyncExitStack() as stack:
        stack.callback(monkeypatch.undo)
        stack.callback(disk.close)
        store = await open_store(setup, disk)
        stack.push_async_callback(store.close)
        upstream = await open_upstream(setup, store)
        stack.push_async_callback(upstream.ends.aclose)
        assert setup.has_drainer
        await identity(setup, disk)
        make_drainer(setup, disk, None, upstream, DrainerMeasures())
        make_sink(setup, disk, 7)
    tree, wrong = config.read_toml(text, "a test"), {}
    for key in keys("syncer.", "drainer."):
        if key in ALONE or key in READ_ELSEWHERE:
            continue
        place = _SECRET_PLACES.sub("", key)  # read while loading, whatever is done with it
        what, is_asked = fate(tree, key), place in watched.keys
        if (what == "in force") != is_asked and (what, key) not in REFUSED_SWITCHES:
            wrong[key] = f"{what}, and {'asked for' if is_asked else 'not asked for'}"
    assert wrong == {}


UPSTREAM = """
data-dir = "{place}"
[upstream]
kind = "{kind}"
cluster-id = 7
abandoned-prewrite = "rollback"
"""
ASKS_TIDB = 'tidb = ["127.0.0.1:1"]\n'
ASKS_PD = 'pd-urls = "127.0.0.1:1"\n'


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("standalone", ""),
        ("tidb", ASKS_TIDB),
        ("pd", ASKS_PD),
        ("pd", ASKS_PD + ASKS_TIDB),
    ],
)
async def test_each_key_of_an_upstream_is_asked_for_or_does_nothing_and_says_so(
    tmp_path: Path, watched: Watched, monkeypatch: pytest.MonkeyPatch, kind: str, more: str
) -> None:
    text = UPSTREAM.format(place=tmp_path, kind=kind) + more
    monkeypatch.setattr(PdClient, "cluster_id", unavailable)  # a restart needs nobody
    setup = setup_of(tmp_path, text)
    disk = PosixDisk(threads=1)
    async with AsyncExitStack() as stack:
        stack.callback(monkeypatch.undo)
        stack.callback(disk.close)
        store = await open_store(setup, disk)
        stack.push_async_callback(store.close)
        upstream = await open_upstream(setup, store)
        stack.push_async_callback(upstream.ends.aclose)
    tree, wrong = config.read_toml(text, "a test"), {}
    for key in keys("upstream."):
        if key in ("upstream.kind", "upstream.pumps"):  # what is asked first; the node's, see below
            continue
        what, is_asked = fate(tree, key), _SECRET_PLACES.sub("", key) in watched.keys
        if (what == "in force") != is_asked:
            wrong[key] = f"{what}, and {'asked for' if is_asked else 'not asked for'}"
    assert wrong == {}


async def unavailable(*_: object) -> int:
    raise UpstreamUnavailable("nobody answers")


READ_ELSEWHERE = {
    "log-level": "app.py",
    "pump.close-timeout": "app.py",
    "security.operators-from": "node/reloading.py",
    "security.admin-token": "node/reloading.py",
    "security.host-names": "node/reloading.py",
    "export.memory": "exporting.py",
    "syncer.relay.restore-after": "tools/restoring.py",
}
"""Before a node is put together, or when somebody asks for it: in these modules."""

NODE = """
data-dir = "{place}"
addr = "127.0.0.1:{port}"
[archive]
url = "{place}/archive"
[export]
dir = "{place}/exports"
"""
BESIDE_A_PD = """
data-dir = "{place}/other"
[upstream]
kind = "pd"
pd-urls = "127.0.0.1:{port}"
tidb = ["127.0.0.1:1"]
[syncer]
load-schema-snapshot = true
"""


async def until_it_answers(setup: Setup) -> None:
    async with asyncio.timeout(30):
        while True:  # ends with the time
            try:
                await look(setup)
            except UpstreamUnavailable as error:
                if "127.0.0.1:1" in str(error):  # behind the PD, its TiDB is asked
                    return
            await asyncio.sleep(0.05)


async def test_each_key_of_the_others_is_asked_for_by_a_node_or_by_one_that_has_a_pd(
    tmp_path: Path, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    node = setup_of(tmp_path, NODE.format(place=tmp_path, port=port))
    with_pd = setup_of(tmp_path, BESIDE_A_PD.format(place=tmp_path, port=port))
    serving = asyncio.create_task(app._serve(Reloading(node, lambda: node)))
    await until_it_answers(with_pd)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await serving == 0
    authority = Authority(tmp_path)
    pair = authority.issue("node")
    files = f'ssl-ca = "{authority.file}"\nssl-cert = "{pair.cert}"\nssl-key = "{pair.key}"'
    server_tls(setup_of(tmp_path, f"[security]\n{files}"))
    monkeypatch.undo()
    unasked = {
        place
        for key in keys("")
        if not key.startswith(("syncer.", "drainer."))
        and (place := _SECRET_PLACES.sub("", key)) not in watched.keys
    }
    assert unasked == {each for each in READ_ELSEWHERE if not each.startswith("syncer.")}
    for key, module in READ_ELSEWHERE.items():
        field_name = key.rpartition(".")[2].replace("-", "_")
        assert f".{field_name}" in (PROGRAM / module).read_text(), key


@pytest.mark.parametrize(
    ("text", "was", "now", "said"),
    [
        ('[syncer]\ndb-type = "kafka"\n', "worker-count = 3", "", 'with db-type "kafka"'),
        ("[syncer]\n", "", "case-sensitive = true", "syncer.table-migrate-rule is not set"),
        ('roles = ["pump"]\n[syncer]\n', "", "sync-ddl = false", "this node replicates nothing"),
    ],
)
def test_a_reload_says_what_of_it_does_nothing(text: str, was: str, now: str, said: str) -> None:
    before, after = (Setup(config.parse(text + each, "a test")) for each in (was, now))
    reply = Reloading(before, lambda: after).reload(lambda: None)
    ((key, reason),) = reply.data["without_effect"].items()
    assert reply.data["applied"] == [key]
    assert said in reason
    assert f"{key}: without effect: {reason}" in reply.message


def test_a_reload_of_what_counts_names_nothing() -> None:
    after = Setup(config.parse("[syncer]\nsync-ddl = false", "a test"))
    reply = Reloading(Setup(config.Config()), lambda: after).reload(lambda: None)
    assert reply.data == {"applied": ["syncer.sync-ddl"], "restart": [], "without_effect": {}}


def test_what_does_nothing_is_said_by_a_start_and_by_check_config() -> None:
    found = config.parse(
        '[syncer]\ndb-type = "kafka"\nworker-count = 3\nenable-detect = false', "a test"
    )
    assert dict(without_effect(found, config.Config())) == {
        "syncer.worker-count": 'it does nothing with db-type "kafka"',
        "syncer.enable-detect": "conflicts are always told apart by keys",
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('roles = ["drainer"]\n[archive]\nurl = "a"', 'has no "pump"'),
        ('roles = ["pump"]\n[upstream]\npumps = ["h:1"]', "this node replicates nothing"),
        ('[archive]\nkeep = "30d"', "archive.url is not set"),
        ("[export]\nidle-ttl = 7", "export.dir is not set"),
        ("[telemetry]\nslow-transaction = 7", "telemetry.otlp-endpoint is not set"),
        ("[syncer.relay]\nrestore-after = 7", "syncer.relay.log-dir is not set"),
        ('[syncer]\ndb-type = "mysql"\n[syncer.to.checkpoint]\nport = 7', "host is not set"),
        ('[syncer.binlog-filter-rule.r]\nignore-event = ["delete"]', "migrate-rule names r"),
        ("[upstream]\ntxn-timeout = 7", 'abandoned-prewrite = "rollback"'),
        ('[upstream]\npd-urls = "h:1"', 'upstream.kind "standalone"'),
    ],
)
def test_what_counts_beside_another_key_only_says_so_without_it(text: str, said: str) -> None:
    pumps = '\n[upstream]\npumps = ["h:1"]\ncluster-id = 7' if '"drainer"' in text else ""
    found = config.parse(text + pumps, "a test")
    ((_, reason),) = without_effect(found, config.Config())
    assert said in reason


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            'db-type = "sqlite"\n[syncer.to.security]\nssl-ca = "ca.pem"',
            'syncer.to.security.ssl-ca: does nothing with db-type "sqlite": it is written to this',
        ),
        (
            'db-type = "kafka"\n[syncer.to.security]\nssl-ca = "ca.pem"\ncert-allowed-cn = ["k"]',
            'syncer.to.security.cert-allowed-cn: does nothing with db-type "kafka": the broker\'s',
        ),
        (
            'db-type = "sqlite"\n[syncer.to.checkpoint]\nhost = "db"',
            "syncer.to.checkpoint.host: does nothing with db-type",
        ),
        (
            'db-type = "kafka"\n[syncer.to.checkpoint]\ntype = "mysql"\nhost = "db"',
            "syncer.to.checkpoint.host: does nothing with db-type",
        ),
        (
            '[syncer.to.checkpoint.security]\nssl-ca = "ca.pem"',
            'syncer.to.checkpoint.security.ssl-ca: does nothing with db-type "file"',
        ),
        (
            'db-type = "mysql"\n[syncer.to.checkpoint]\ntype = "mysql"',
            "syncer.to.checkpoint.host: is missing; with a type and without a host a Go Drainer",
        ),
    ],
)
def test_what_promises_more_than_is_done_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        config.parse(f"[syncer]\n{text}", "binlogd.toml")
    assert str(refused.value).startswith(f"binlogd.toml: {said}")
