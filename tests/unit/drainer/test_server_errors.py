"""What a server says at a login, and of a statement, is named by what to do next."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pymysql.err import OperationalError

from binlogd.drainer.mysql.connection import (
    MySqlServer,
    NoRoom,
    ReadOnly,
    SqlRefused,
    SqlSession,
    TryAgain,
)
from binlogd.errors import BinlogdError, DownstreamUnavailable


class Refusing:
    """A connection that answers one statement with an error, and every other with nothing."""

    def __init__(self, text: bytes, error: OperationalError) -> None:
        self.closed = False
        self._text, self._error = text, error
        self.result: Any = SimpleNamespace(
            affected_rows=0, warning_count=0, rows=[(0,)], has_next=False
        )

    async def open(self, *, several: bool = False) -> None:
        if not self._text:
            raise self._error

    async def query(self, sql: bytes) -> None:
        if sql == self._text:
            raise self._error

    async def next_result(self) -> None: ...

    def thread_id(self) -> int:
        return 1

    def close(self) -> None:
        self.closed = True


async def told(text: bytes, code: int, reason: str) -> BinlogdError:
    """What becomes of a statement that is refused so; of the login where there is no text."""
    refusing = Refusing(text, OperationalError(code, reason))
    server = MySqlServer("db", 3306, "me", "", connector=lambda *_, **__: refusing)
    with pytest.raises(BinlogdError) as raised:
        await (await SqlSession.connect(server)).run(text)
    return raised.value


@pytest.mark.parametrize(
    ("code", "reason", "todo"),
    [
        (4151, "Access denied, this account is locked", "unlock the user"),
        (3118, "Access denied for user 'me'@'h'. Account is locked.", "unlock the user"),
        (1862, "Your password has expired. To log in you must change it", "renew its password"),
        (3159, "Connections using insecure transport are prohibited", "syncer.to.security"),
        (3032, "The server is currently in offline mode", ""),
        (1226, "User 'me' has exceeded the 'max_queries_per_hour' resource", "raise that limit"),
    ],
)
async def test_a_login_that_is_refused_for_now_is_waited_for(
    code: int, reason: str, todo: str
) -> None:
    error = await told(b"", code, reason)
    assert isinstance(error, DownstreamUnavailable)
    assert f"error {code}: {reason}" in str(error)
    assert todo in error.todo


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (1820, "You must SET PASSWORD before executing this statement", DownstreamUnavailable),
        (1047, "WSREP has not yet prepared node for application use", DownstreamUnavailable),
        (3101, "Plugin instructed the server to rollback the current transaction.", TryAgain),
        (3989, "Schema 's' is in read only mode.", ReadOnly),
        (3, "Error writing file './s/n.frm' (Errcode: 28 \"No space left on device\")", NoRoom),
        (3, "Error writing file './s/n' (OS errno 28 - No space left on device)", NoRoom),
        (1005, 'Can\'t create table `s`.`n` (errno: 28 "No space left on device")', NoRoom),
        (1030, "Got error 28 'No space left on device' from storage engine InnoDB", NoRoom),
        (1180, "Got error 28 during COMMIT", NoRoom),
        (1030, "Got error 168 'Unknown (generic) error from engine' from storage", SqlRefused),
        (1005, "Can't create table `s`.`n` (errno: 150)", SqlRefused),
        (1062, "Duplicate entry 'error 28' for key 'PRIMARY'", SqlRefused),
    ],
)
async def test_an_error_is_waited_for_where_somebody_can_heal_it(
    code: int, reason: str, kind: type[BinlogdError]
) -> None:
    assert type(await told(b"CREATE TABLE n (id INT)", code, reason)) is kind
