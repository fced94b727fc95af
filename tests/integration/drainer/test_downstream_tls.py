"""TLS to a real MariaDB: required where it is configured, and judged by both sides."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from hashlib import sha1
from pathlib import Path

import pytest
import uvloop

from binlogd.drainer.mysql.connection import MySqlServer, SqlSession
from binlogd.errors import DownstreamUnavailable
from binlogd.host.tls import ClientTls, TlsFiles
from tests.support.certificates import Authority
from tests.support.mariadb import MariaDb

PASSWORD = "pässwörd-密码"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def database(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDb]:
    pair = authority.issue("server", "database")
    options = (f"--ssl-ca={authority.file}", f"--ssl-cert={pair.cert}", f"--ssl-key={pair.key}")
    server = MariaDb(tmp_path_factory.mktemp("tls"), options=options, pool_mb=16)
    server.start()
    server.execute(
        "CREATE OR REPLACE USER x509@'%' IDENTIFIED BY 'secret' REQUIRE X509",
        "CREATE OR REPLACE USER tls@'%' IDENTIFIED BY 'secret' REQUIRE SSL",
    )
    secret = sha1(sha1(PASSWORD.encode()).digest()).hexdigest().upper()
    server.execute(f"CREATE OR REPLACE USER utf8@'%' IDENTIFIED BY PASSWORD '*{secret}'")
    yield server
    server.stop()


def asked(server: MariaDb, user: str, files: TlsFiles | None) -> str:
    """What the session says it is encrypted by."""

    async def ask() -> str:
        tls = ClientTls(files) if files else None
        target = MySqlServer(
            "127.0.0.1", server.port, user, "secret" if user != "root" else "", tls=tls
        )
        session = await SqlSession.connect(target)
        try:
            ((_, cipher),) = await session.rows(b"SHOW STATUS LIKE 'Ssl_cipher'")
        finally:
            session.close()
        return str(cipher)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(ask())


def test_a_session_is_encrypted_where_that_is_configured(
    database: MariaDb, authority: Authority
) -> None:
    assert asked(database, "tls", authority.files()).startswith("TLS_")
    assert asked(database, "tls", authority.files(None, "database")).startswith("TLS_")
    assert asked(database, "root", None) == ""


def test_a_password_is_in_utf_8_as_the_server_has_it(database: MariaDb) -> None:
    async def log_in() -> None:
        target = MySqlServer("127.0.0.1", database.port, "utf8", PASSWORD)
        (await SqlSession.connect(target)).close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(log_in())


def test_a_client_certificate_is_shown(database: MariaDb, authority: Authority) -> None:
    assert asked(database, "x509", authority.files(authority.issue("client"))) != ""
    with pytest.raises(DownstreamUnavailable, match="Access denied"):
        asked(database, "x509", authority.files())


def test_a_server_of_another_ca_or_name_is_not_spoken_to(
    database: MariaDb, authority: Authority, tmp_path: Path
) -> None:
    with pytest.raises(DownstreamUnavailable, match="certificate"):
        asked(database, "tls", Authority(tmp_path).files())
    with pytest.raises(DownstreamUnavailable, match="was not found in the configuration"):
        asked(database, "tls", authority.files(None, "another"))


def test_a_server_without_tls_is_told_nothing(mariadb: MariaDb, authority: Authority) -> None:
    with pytest.raises(DownstreamUnavailable, match="offers no TLS"):
        asked(mariadb, "root", authority.files())
