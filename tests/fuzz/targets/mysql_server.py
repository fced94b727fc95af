"""What a server says by MySQL's protocol: a result, or an error of its or of the network."""

from __future__ import annotations

import asyncio
from typing import Any

import aiomysql.connection
from pymysql.err import MySQLError

from binlogd.wire.mysql import MysqlConnection


class _Transport:
    def get_extra_info(self, name: str) -> Any:
        return None

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        """There is nobody."""

    set_write_buffer_limits = close = pause_reading = lambda *_, **__: None


class _Writer:
    transport = _Transport()

    def write(self, data: bytes) -> None:
        """To nobody."""

    writelines = close = write

    def get_extra_info(self, name: str) -> Any:
        return None

    async def drain(self) -> None:
        """At once."""


def _packet(number: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "little") + bytes([number]) + body


def _text(text: bytes) -> bytes:
    return bytes([len(text)]) + text


_GREETING = _packet(
    0,
    b"\x0a8.0.11-TiDB\0\1\0\0\0abcdefgh\0\xff\xf7\x2e\2\0\xff\xdf\x15"
    + bytes(10)
    + b"ijklmnopqrst\0mysql_native_password\0",
)
_OK = bytes.fromhex("00000002000000")


def _column(name: bytes, tp: int) -> bytes:
    rest = b"\x0c\x2d\0\x10\0\0\0" + bytes([tp]) + b"\0\0\0\0\0"
    return b"".join(map(_text, (b"def", b"", b"", b"", name, name))) + rest


def seeds() -> list[bytes]:
    """A login, and results of a few kinds."""
    login = _GREETING + _packet(2, _OK) + _packet(1, _OK)
    eof = b"\xfe\0\0\2\0"
    rows = [
        b"\2",
        _column(b"a", 3),
        _column(b"b", 253),
        eof,
        _text(b"12") + _text(b"x"),
        b"\xfb\xfb",
        eof,
    ]
    result = b"".join(_packet(number + 1, body) for number, body in enumerate(rows))
    typed = [b"\1", _column(b"t", 12), eof, _text(b"2026-01-02 03:04:05"), eof]
    error = b"\xff\x15\x04#28000Access denied"
    return [
        login + result,
        login + b"".join(_packet(number + 1, body) for number, body in enumerate(typed)),
        login + _packet(1, error),
        _GREETING + _packet(2, error),
        _GREETING
        + _packet(2, b"\xfecaching_sha2_password\0abcdefghijklmnopqrst\0")
        + _packet(4, b"\1\3")
        + _packet(5, _OK),
        login + _packet(1, b"\0\1\2\2\0\0\0") * 2,
    ]


_LOOP = asyncio.new_event_loop()


def run(data: bytes) -> None:
    """All that it says, to a login and a query."""
    _LOOP.run_until_complete(_spoken(data))


async def _spoken(data: bytes) -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()

    async def connected(*_: object, **__: object) -> tuple[asyncio.StreamReader, _Writer]:
        return reader, _Writer()

    before = aiomysql.connection._open_connection
    aiomysql.connection._open_connection = connected
    connection = MysqlConnection(
        ("127.0.0.1", 1), "u", "p", autocommit=True, tls=None, without_tls=""
    )
    try:
        await connection.open()
        await connection.query("SELECT 1")
        for _ in range(5):
            if not connection.result.has_next:
                break
            await connection.next_result()
    except (MySQLError, OSError, RuntimeError):
        return
    finally:
        aiomysql.connection._open_connection = before
        connection._writer = None
