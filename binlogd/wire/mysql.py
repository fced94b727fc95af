"""A connection that speaks MySQL's protocol: by TLS or not at all where TLS was asked for.

What aiomysql keeps to itself is used here: connecting in steps, and the answer as a whole, which
need not be text. It is used by one task at a time; whoever waits for it bounds the wait.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import aiomysql
from aiomysql.connection import MySQLResult
from pymysql.constants import CLIENT
from pymysql.err import MySQLError

from binlogd.host.silence import cut, notice_silence
from binlogd.host.tls import ClientTls

_ACCESS_DENIED = 1045
_SHA2 = "caching_sha2_password"
_QUIT = b"\x01\x00\x00\x00\x01"
"""A packet of one byte, COM_QUIT. To a server without it a connection has broken, and its log says
so."""


def for_mysql(password: str) -> str:
    """As aiomysql has to be given it: it sends a byte for each character, and refuses those beyond
    latin-1; servers, and the original, have passwords in UTF-8."""
    return password.encode().decode("latin1")


class MysqlConnection(aiomysql.Connection):  # type: ignore[misc]  # aiomysql has no types
    """Not connected before `open`. An UPDATE counts the rows that it found, changed or not.
    `without_tls` says what to do about a server that offers none. Errors are aiomysql's own."""

    def __init__(
        self,
        address: tuple[str, int],
        user: str,
        password: str,
        *,
        autocommit: bool,
        tls: ClientTls | None,
        without_tls: str,
    ) -> None:
        super().__init__(
            host=address[0],
            port=address[1],
            user=user,
            password=for_mysql(password),
            charset="utf8mb4",
            autocommit=None,  # by `open`
            client_flag=CLIENT.FOUND_ROWS,
            # no limit of aiomysql's own: asyncio.wait_for forgets, up to Python 3.11, that it was
            # cancelled when the connection is made in that very moment
            connect_timeout=None,
            ssl=tls.fresh() if tls else None,
        )
        self._tls, self._without_tls = tls, without_tls
        self._with_autocommit = autocommit
        self._is_answer_due = False

    async def open(self, *, several: bool = False) -> None:
        """With `several` one query may be many statements; without it the server refuses that.
        Raises MySQLError; OSError of the network, and of a certificate that is not the one."""
        if not several:  # aiomysql always asks for it
            self.client_flag &= ~CLIENT.MULTI_STATEMENTS
        try:
            await self._understood(self._connect())
            await self._understood(self.autocommit(self._with_autocommit))
        except MySQLError as error:
            code, reason = error.args if len(error.args) == 2 else (0, error)
            more = _hint(code, self._auth_plugin_used, has_tls=self._tls is not None)
            if not more:
                raise
            raise type(error)(code, f"{reason}{more}") from error
        # a statement may take any time, and its answer may never come
        notice_silence(self._writer.transport.get_extra_info("socket"))
        if self._tls is None:
            return
        certificate = self._writer.transport.get_extra_info("peercert")
        if refusal := self._tls.refusal(certificate):
            raise ConnectionError(refusal)

    async def _read_query_result(self, unbuffered: bool = False) -> None:  # noqa: FBT001
        assert not unbuffered, "answers are read whole"
        self._result = None
        result = _Result(self)
        await result.read()
        self._result = result
        self._affected_rows = result.affected_rows
        if result.server_status is not None:
            self.server_status = result.server_status

    async def query(self, sql: bytes | str, unbuffered: bool = False) -> Any:  # noqa: FBT001
        """As aiomysql's. Raises MySQLError, RuntimeError, or OSError of what makes no sense."""
        return await self._understood(super().query(sql, unbuffered))

    async def next_result(self) -> Any:
        """As `query`."""
        return await self._understood(super().next_result())

    async def _understood(self, answer: Awaitable[Any]) -> Any:
        """aiomysql takes packets apart unchecked: one that is short or foreign raises anything."""
        self._is_answer_due = True
        try:
            found = await answer
        except MySQLError:  # the server's, which says nothing more, or this side has closed
            self._is_answer_due = False
            raise
        except (OSError, RuntimeError):
            raise
        except Exception as error:
            if self.closed and isinstance(error, AttributeError):
                raise ConnectionError("it was closed under a read") from error
            self.close()
            raise ConnectionError(
                f"what it says is not MySQL's protocol ({error!r}): is this the port of a MySQL,"
                " MariaDB or TiDB?"
            ) from error
        self._is_answer_due = self._result is not None and self._result.has_next
        return found

    async def _request_authentication(self) -> None:
        try:
            await super()._request_authentication()
        except BaseException:  # aiomysql would say goodbye by TLS, and wait for an answer
            self.close()
            raise

    async def _process_auth(self, plugin_name: bytes, packet: Any) -> Any:
        self._auth_plugin_used = plugin_name.decode()  # also of a login that fails
        return await super()._process_auth(plugin_name, packet)

    async def _get_server_information(self) -> None:
        """Raises OSError where aiomysql would go on without the TLS that was asked for."""
        await super()._get_server_information()
        if self._ssl_context and not self.server_capabilities & CLIENT.SSL:
            raise ConnectionError(self._without_tls)

    def close(self) -> None:
        """At once, whatever the server takes or answers; one that waits is told that it is over."""
        writer = self._writer
        if writer is None:
            return
        if self._is_answer_due or writer.transport.is_closing():
            cut(writer.transport)
            super().close()
        else:
            writer.write(_QUIT)
            super().close()
            # uvloop writes at the end of a turn
            self.loop.call_soon(cut, writer.transport)

    @property
    def result(self) -> Any:
        """Of the last statement: its rows, or how many it found, and its warnings."""
        return self._result


class _Result(MySQLResult):  # type: ignore[misc]  # aiomysql has no types
    """An answer whose text may hold bytes that are none, as SHOW CREATE TABLE has them behind a
    DEFAULT of a binary column: they stand as lone surrogates (PEP 383)."""

    def _read_row_from_packet(self, packet: Any) -> tuple[Any, ...]:
        row = []
        for encoding, converter in self.converters:
            value = packet.read_length_coded_string()
            if value is not None and encoding is not None:
                value = value.decode(encoding, "surrogateescape")
            if value is not None and converter is not None:
                value = converter(value)
            row.append(value)
        return tuple(row)


def _hint(code: object, plugin: str, *, has_tls: bool) -> str:
    """What to add to a server's error at login. MySQL 8 takes the password encrypted by its RSA key
    where there is no TLS; a TiDB has no such key, and takes the request for it for the password.
    Source: TiDB pkg/server/conn.go, authSha."""
    if code != _ACCESS_DENIED or plugin != _SHA2 or has_tls:
        return ""
    return (
        f" (the user has {_SHA2}, for which a TiDB needs TLS: set it up, or ALTER USER ..."
        " IDENTIFIED WITH mysql_native_password)"
    )
