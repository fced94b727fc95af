"""How a schema registry is reached, and what is said where it is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from binlogd.drainer.kafka.schema_registry import RegistryOptions, SchemaRegistry
from binlogd.errors import ConfigError, DownstreamUnavailable
from binlogd.host.tls import ClientTls, ServerTls
from binlogd.node import into_kafka
from binlogd.node.reach import reach
from tests.integration.drainer.test_kafka_access import set_up
from tests.support.certificates import Authority
from tests.support.hung_servers import hung_after
from tests.support.kafka import Kafka
from tests.support.ports import free_port
from tests.support.schema_registry import SmallRegistry

NO_DDL = "sync-ddl = false\n"
LINES = """protocol = "debezium-avro"
topic-name = "{{table}}"
schema-registry = "{url}"
schema-registry-user = "{user}"
schema-registry-password = "of it"
"""


async def refusal(options: RegistryOptions) -> str:
    with pytest.raises(DownstreamUnavailable) as refused:
        await SchemaRegistry(options).greet()
    assert "of it" not in f"{refused.value}{options!r}"
    return str(refused.value)


async def test_what_is_refused_says_what_where_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("binlogd.drainer.kafka.schema_registry.ANSWER_S", 0.5)
    authority, stranger = Authority(tmp_path / "tls"), Authority(tmp_path / "strange")
    ours, others = ClientTls(authority.files()), ClientTls(stranger.files())
    small, wrong = SmallRegistry(), dict[str, str]()
    small.login = "ann:of it"
    async with small.serving(ServerTls(authority.files(authority.issue("registry")))):
        await SchemaRegistry(RegistryOptions(f"{small.url}/", "ann", "of it", ours)).greet()
        ways = [
            (
                RegistryOptions(small.url, "bob", "of it", ours),
                "the login of bob: HTTP 401",
            ),
            (RegistryOptions(small.url, "", "", ours), "a request without a login: .*-user and"),
            (RegistryOptions(small.url, "ann", "of it", others), "verify failed.*; check .*ssl-ca"),
            (RegistryOptions(small.url, "ann", "of it"), "does not answer: .*; check .*ssl-ca"),
            (RegistryOptions(f"{small.url}/x", "ann", "of it", ours), "offers no Avro: HTTP 404"),
        ]
        for options, said in ways:
            wrong[said] = await refusal(options)
        for status, said in ((403, "lets ann not do GET /schemas/types"), (503, "HTTP 503")):
            small.fails_with = status
            wrong[said] = await refusal(RegistryOptions(small.url, "ann", "of it", ours))
    at = f"http://127.0.0.1:{free_port()}"
    wrong[f"at {at} does not answer: .*; check syncer.to.schema-reg"] = await refusal(
        RegistryOptions(at)
    )
    with hung_after(lambda peer: peer) as (host, port):
        hung = f"http://{host}:{port}"
        wrong[f"at {hung} does not answer: "] = await refusal(RegistryOptions(hung))
    found = {said: re.search(said, text, re.DOTALL) is not None for said, text in wrong.items()}
    assert all(found.values()), wrong


async def test_a_question_asks_the_registry_too_and_changes_nothing_there(
    kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = SmallRegistry()
    small.login = "ann:of it"
    for user in ("ann", "bob"):
        (tmp_path / user).mkdir()
    async with small.serving():
        made = [
            set_up(tmp_path / user, kafka.address, LINES.format(url=small.url, user=user), NO_DDL)
            for user in ("ann", "bob")
        ]
        assert await reach(made[0]) == ""
        with pytest.raises(DownstreamUnavailable, match=r"login of bob: HTTP 401.*; check syncer"):
            await reach(made[1])
        assert small.posted == []

    def absent() -> None:
        raise ConfigError("fastavro is not there")

    monkeypatch.setattr(into_kafka, "check_installed", absent)
    with pytest.raises(ConfigError, match="fastavro"):
        await reach(made[0])
