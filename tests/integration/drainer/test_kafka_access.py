"""How Kafka is reached as companies run it: TLS, logins, compression, and what is refused."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote_plus

import aiohttp
import pytest
from aiohttp import web
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from binlogd.drainer.kafka.broker import Broker, BrokerOptions
from binlogd.drainer.kafka.login import KafkaLogin, token_provider
from binlogd.drainer.kafka.message import FIRST_PARTITION, KafkaMessage
from binlogd.errors import ConfigError, DownstreamUnavailable
from binlogd.host.tls import ClientTls, ServerTls
from binlogd.node.reach import reach
from binlogd.settings import config, sources
from binlogd.settings.setup import Setup
from tests.integration.drainer.test_kafka_edges import options
from tests.support.certificates import Authority
from tests.support.kafka import GUEST, PASSWORD, SESSION_MS, USER, Kafka, read_committed

MESSAGE = KafkaMessage("s", "t", FIRST_PARTITION, None, b"row" * 1000)
TO = '[syncer]\ndb-type = "kafka"\n{more}[syncer.to]\nkafka-addrs = "{at}"\n{lines}'


def reached(
    kafka: Kafka,
    listener: str,
    login: KafkaLogin | None = None,
    tls: ClientTls | None = None,
    name: str = "access",
) -> BrokerOptions:
    made = replace(options(kafka, name), topic=name, login=login, tls=tls)
    return replace(made, addresses=(kafka.at(listener),))


def unsigned(lives_s: float) -> str:
    """A token that the broker believes as it is."""
    now = time.time()
    claims = {"sub": USER, "iat": now - 3600, "exp": now + lives_s}
    parts = ({"alg": "none"}, claims)
    texts = [base64.urlsafe_b64encode(json.dumps(each).encode()).decode() for each in parts]
    return ".".join(each.rstrip("=") for each in texts) + "."


def token(path: Path, lives_s: float) -> KafkaLogin:
    """A file with such a token."""
    path.write_text(unsigned(lives_s) + "\n")
    return KafkaLogin("OAUTHBEARER", token_file=str(path))


class Provider:
    """An identity provider that knows one client and one scope."""

    def __init__(self) -> None:
        self.answer: str | None = None
        self.url = ""
        self.asked = 0

    @asynccontextmanager
    async def serving(self, tls: ServerTls) -> AsyncIterator[None]:
        app = web.Application()
        app.router.add_post("/token", self._token)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls.listener()).start()
        self.url = f"https://127.0.0.1:{runner.addresses[0][1]}/token"
        yield
        await runner.cleanup()

    async def _token(self, request: web.Request) -> web.Response:
        self.asked += 1
        client = aiohttp.BasicAuth.decode(request.headers["Authorization"])
        form = dict(await request.post())
        if (client.login, client.password) != ("binlogd%2Fkafka", quote_plus(PASSWORD)):
            return web.json_response({"error": "invalid_client"}, status=401)
        if form != {"grant_type": "client_credentials", "scope": "kafka write"}:
            return web.json_response({"error": "invalid_scope"}, status=400)
        if self.answer is not None:
            return web.Response(text=self.answer, content_type="application/json")
        granted = {"access_token": unsigned(3600), "token_type": "Bearer", "expires_in": 3600}
        return web.json_response(granted)


async def test_each_login_and_each_compression_writes_what_anybody_reads(
    kafka: Kafka, tmp_path: Path
) -> None:
    tls = ClientTls(kafka.authority.files())
    shown = ClientTls(kafka.authority.files(kafka.authority.issue("client")))
    ways = [
        ("TLS", None, tls, "gzip"),
        ("MUTUAL", None, shown, "snappy"),
        ("BOTH", KafkaLogin("PLAIN", USER, PASSWORD), tls, "lz4"),
        ("BOTH", KafkaLogin("SCRAM-SHA-256", USER, PASSWORD), tls, "zstd"),
        ("LOGIN", KafkaLogin("SCRAM-SHA-512", USER, PASSWORD), None, ""),
        ("LOGIN", token(tmp_path / "token", 3600), None, ""),
    ]
    for number, (listener, login, of_tls, compression) in enumerate(ways):
        broker = Broker(replace(reached(kafka, listener, login, of_tls), compression=compression))
        assert await broker.start() == (str(number - 1).encode() if number else None)
        await broker.publish([MESSAGE], str(number).encode())
        await broker.stop()
    found = await read_committed(kafka.address, "access")
    assert [each.value for each in found] == [MESSAGE.value] * len(ways)
    plain = kafka.log("access").count(b"row" * 10) * 10
    assert plain == 2 * 1000, "two of them are not compressed"


async def refusal(options: BrokerOptions) -> str:
    broker = Broker(options)
    with pytest.raises(DownstreamUnavailable) as refused:
        await broker.start()
    await broker.stop()
    assert PASSWORD not in str(refused.value)
    return str(refused.value)


async def test_what_is_refused_says_what_where_and_what_to_do(kafka: Kafka, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text("\n")
    tls = ClientTls(kafka.authority.files())
    strange = Authority(tmp_path / "strange")
    unknown_client = ClientTls(replace(kafka.authority.files(strange.issue("client"))))
    user = KafkaLogin("PLAIN", USER, PASSWORD)
    wrong = KafkaLogin("SCRAM-SHA-512", USER, "wrong")
    ways = [
        (
            "LOGIN",
            replace(user, password="wrong"),
            None,
            "login of alice by PLAIN.*check syncer.to",
        ),
        ("LOGIN", wrong, None, "login of alice by SCRAM-SHA-512.*check syncer.to"),
        ("BOTH", wrong, tls, "does not offer the login SCRAM-SHA-512; set syncer"),
        ("LOGIN", token(tmp_path / "old", -60), None, "refuses the token of .*old.*; have a token"),
        (
            "LOGIN",
            replace(token(tmp_path / "x", 0), token_file=str(tmp_path)),
            None,
            "Is a directory; have who",
        ),
        ("LOGIN", None, None, "without a word; a listener with TLS needs .* login"),
        ("PLAINTEXT", user, None, "takes no login there; remove"),
        (
            "LOGIN",
            KafkaLogin("PLAIN", GUEST, PASSWORD),
            None,
            "TransactionalId.*; give it the rights",
        ),
        ("TLS", None, ClientTls(strange.files()), "not believed: .*; check .*ca.pem"),
        ("TLS", None, None, "without a word; a listener with TLS needs"),
        ("PLAINTEXT", None, tls, "ends TLS.*a port with TLS|ends TLS.*listener with TLS"),
        ("MUTUAL", None, tls, "ends TLS: .*check that syncer.to.security.ssl-cert is there"),
        ("MUTUAL", None, unknown_client, "ends TLS: .*signed by a CA that the broker"),
    ]
    ways.append(
        ("LOGIN", KafkaLogin("OAUTHBEARER", token_file=str(empty)), None, "no token; have who")
    )
    wrongly = {}
    for listener, login, of_tls, said in ways:
        found = await refusal(reached(kafka, listener, login, of_tls, "refused"))
        if not re.search(f"Kafka at {kafka.at(listener)} .*{said}", found, re.DOTALL):
            wrongly[said] = found
    assert wrongly == {}


async def test_an_identity_provider_gives_the_token_for_each_login(kafka: Kafka) -> None:
    pair = kafka.authority.issue("provider")
    provider, tls = Provider(), ClientTls(kafka.authority.files())
    login = KafkaLogin("OAUTHBEARER", "binlogd/kafka", PASSWORD, token_scope="kafka write")
    async with provider.serving(ServerTls(kafka.authority.files(pair))):
        login = replace(login, token_url=provider.url)
        made = reached(kafka, "BOTH", login, tls, "provider")
        broker = Broker(made)
        await broker.start()
        await broker.publish([MESSAGE], b"1")
        await broker.stop()
        assert len(await read_committed(kafka.address, "provider")) == 1
        assert provider.asked > 2, "each connection has a token of its own"
        wrong = [
            (replace(login, password="x"), r"no token from .*HTTP 401: .*invalid_client.*; check"),
            (replace(login, token_scope=""), r"HTTP 400: .*invalid_scope.*kafka-token-scope"),
            (replace(login, token_url="https://127.0.0.1:1/"), r"no token from https://127"),
        ]
        found = [(await refusal(replace(made, login=each)), said) for each, said in wrong]
        for answer in ("{}", '{"access_token": ""}', "<html>"):
            provider.answer = answer
            found.append((await refusal(made), "no token from https://.*/token"))
        provider.answer = json.dumps({"access_token": "of.some.body"})
        found.append((await refusal(made), r"refuses the token of https://.*/token.*believes"))
        with pytest.raises(OSError, match="certificate verify failed"):
            await token_provider(login, None).token()
    assert [(text, said) for text, said in found if not re.search(said, text, re.DOTALL)] == []


async def test_a_token_is_read_anew_when_the_session_of_the_one_before_ends(
    kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    login = token(tmp_path / "token", 3600)
    broker = Broker(reached(kafka, "LOGIN", login, None, "session"))
    await broker.start()
    until, sent = time.monotonic() + 2 * SESSION_MS / 1000, 0
    while time.monotonic() < until:  # sessions end and begin, and nobody notices
        sent += 1
        await broker.publish([MESSAGE], str(sent).encode())
    monkeypatch.setattr("binlogd.drainer.kafka.broker.ANSWER_WAIT_S", 3.0)
    token(tmp_path / "token", -60)
    with pytest.raises(DownstreamUnavailable):
        await without_end(broker)
    await broker.stop()
    assert "refuses the token" in await refusal(reached(kafka, "LOGIN", login, None, "session"))
    token(tmp_path / "token", 3600)
    after = Broker(reached(kafka, "LOGIN", login, None, "session"))
    assert await after.start() in (str(sent).encode(), b"unknown")
    await after.stop()
    assert len(await read_committed(kafka.address, "session")) == sent


async def without_end(broker: Broker) -> None:
    while True:  # until Kafka does not take it any more
        await broker.publish([], b"unknown")


def set_up(tmp_path: Path, at: str, lines: str, more: str = "") -> Setup:
    path = tmp_path / "binlogd.toml"
    path.write_text(TO.format(at=at, lines=lines, more=more))
    return Setup(sources.read(path, {}).config)


async def test_a_question_finds_what_a_start_would_and_shuts_nobody_out(
    kafka: Kafka, tmp_path: Path
) -> None:
    pair = kafka.authority.issue("asking")
    key = load_pem_private_key(pair.key.read_bytes(), None)
    hidden = key.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"of the key")
    )
    pair.key.write_bytes(hidden)
    (tmp_path / "secret").write_text("of the key\n")
    files = f'ssl-ca = "{kafka.authority.file}"\nssl-cert = "{pair.cert}"\nssl-key = "{pair.key}"'
    lines = f'[syncer.to.security]\n{files}\nssl-key-password-file = "secret"'
    writing = Broker(options(kafka, "0"))
    await writing.start()
    await reach(set_up(tmp_path, kafka.at("MUTUAL"), lines))
    await writing.publish([], b"still there")
    await writing.stop()
    login = 'kafka-sasl-mechanism = "PLAIN"\nuser = "alice"\npassword = "wrong"'
    with pytest.raises(DownstreamUnavailable, match=r"check syncer\.to\.user and"):
        await reach(set_up(tmp_path, kafka.at("LOGIN"), login))
    with pytest.raises(ConfigError, match="encrypted with another password than ssl-key-password"):
        await reach(set_up(tmp_path, kafka.at("MUTUAL"), lines.replace("-file", "")))
    (tmp_path / "secret").write_text("of the key" * 200)
    with pytest.raises(ConfigError, match="password cannot be longer than 1024 bytes"):
        await reach(set_up(tmp_path, kafka.at("MUTUAL"), lines))


BY_TOKEN = 'kafka-sasl-mechanism = "OAUTHBEARER"\nkafka-token-url = "http://p/token"\n'
IN_AVRO = 'protocol = "debezium-avro"\ntopic-name = "{table}"\n'


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('kafka-sasl-mechanism = "OAUTHBEARER"', "kafka-token-file: is missing"),
        ('kafka-token-file = "t"', "kafka-token-file: goes with"),
        ('kafka-token-url = "http://p"', "kafka-token-url: goes with"),
        ('kafka-token-scope = "s"', "kafka-token-scope: goes with kafka-token-url only"),
        (BY_TOKEN, "syncer.to.password: is missing"),
        (BY_TOKEN + 'kafka-token-file = "t"', "kafka-token-url: give one of them"),
        (BY_TOKEN.replace("http", "gopher"), "kafka-token-url: expected a URL, as in"),
        ('protocol = "debezium-avro"', "has a topic, and so its subjects, for each table"),
        (IN_AVRO, 'schema-registry: expected a URL, as in "https://host:8081/path"'),
        (IN_AVRO + 'schema-registry = "http://r"', "sync-ddl: must be false with"),
        (IN_AVRO + "debezium-schemas = true", 'goes with protocol = "debezium" only'),
        ('schema-registry-user = "u"', "registry-user: goes with protocol = .debezium-avro. only"),
        ('kafka-sasl-mechanism = "SCRAM-SHA-256"', "password: is missing; SCRAM-SHA-256"),
        ('[syncer.to.security]\nssl-key-password = "x"', "ssl-key: is missing"),
    ],
)
def test_a_login_that_could_never_succeed_is_refused_by_the_configuration(
    lines: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        config.parse(TO.format(at="k:9092", lines=lines, more=""), "a test")


async def test_brokers_that_name_themselves_where_nobody_is_are_told_of(kafka: Kafka) -> None:
    """A relay in front of the broker: greeted there, and sent on to the broker's own address."""

    relays: list[asyncio.Task[None] | None] = []

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        relays.append(asyncio.current_task())
        there, back = await asyncio.open_connection("127.0.0.1", kafka.port)

        async def pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                sink.write(data.replace(kafka.port.to_bytes(4), (1).to_bytes(4)))
            sink.close()
            await sink.wait_closed()

        await asyncio.gather(pass_on(reader, back), pass_on(there, writer))

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    made = replace(options(kafka, "named"), addresses=(f"127.0.0.1:{port}",))
    said = await refusal(made)
    server.close()
    await asyncio.gather(*filter(None, relays))
    assert f"Kafka at 127.0.0.1:{port} answers, and names its brokers otherwise" in said
    assert "127.0.0.1:1 cannot be used" in said
    assert "advertised.listeners" in said


RIGHTS = {
    "--transactional-id": ("Describe", "Write"),
    "--topic": ("Create", "Describe", "Read", "Write"),
}
"""As docs/KAFKA.md lists them; Read is for the topic of the progress alone."""


@pytest.mark.soak
async def test_a_user_with_the_rights_of_the_page_may_all_that_is_needed(kafka: Kafka) -> None:
    for resource, operations in RIGHTS.items():
        kafka.allow(GUEST, resource, "progress-rights", operations)
    kafka.allow(GUEST, "--topic", "rights", RIGHTS["--topic"][:2] + RIGHTS["--topic"][3:])
    login = KafkaLogin("PLAIN", GUEST, PASSWORD)
    for progress in (None, b"1"):
        broker = Broker(reached(kafka, "LOGIN", login, None, "rights"))
        assert await broker.start() == progress
        await broker.publish([MESSAGE], b"1")
        await broker.stop()
    assert len(await read_committed(kafka.address, "rights")) == 2
