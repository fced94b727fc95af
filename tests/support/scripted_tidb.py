"""A TiDB as far as binlogd asks one: a MySQL port and a status port, which can be killed.

TiDB's own answers, in the notation of a version; there is no store behind it but what a test says.
Source: TiDB docs/tidb_http_api.md, pkg/executor/show.go, pkg/session/bootstrap.go.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

from aiohttp import web
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from mysql_mimic import (
    AuthPlugin,
    IdentityProvider,
    MysqlServer,
    NativePasswordAuthPlugin,
    ResultColumn,
    Session,
    User,
)
from mysql_mimic.auth import Forbidden, Success
from mysql_mimic.errors import MysqlError
from mysql_mimic.types import ColumnType

from tests.support.ports import free_port

NO_TABLE, NO_PRIVILEGE, SYNTAX = 1146, 1227, 1064
Answer = tuple[Sequence[Sequence[Any]], Sequence[str | ResultColumn]]


@dataclass
class ScriptedTidb:
    """`start` and `kill` it as often as is needed; it keeps its ports."""

    now: Callable[[], int] = lambda: 0
    version: str = "6.5"
    """"2.1", "3.0", "4.0" or "6.5": which statements and notations it knows."""
    user: str = "binlogd"
    password: str = ""
    has_sha2: bool = False
    """Its user has `caching_sha2_password`, as MySQL 8 gives it to whoever says nothing else."""
    has_rsa: bool = False
    """It has a key for passwords without TLS: a MySQL 8, no TiDB."""
    may_show_master_status: bool = True
    jobs: list[Mapping[str, Any]] = field(default_factory=list)
    history_page: int = 0
    """Jobs of one answer at most, as from 8.4 on; 0: all."""
    keys: dict[bytes, Mapping[str, Any]] = field(default_factory=dict)
    """MvccInfo of each key, as TiKV has it."""
    region_errors: int = 0
    """So many look-ups are answered by one."""
    tables: dict[int, tuple[str, str]] = field(default_factory=dict)
    """Schema and name by id."""
    pd: str = ""
    statements: list[str] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    sessions: int = 0
    """That were begun at the MySQL port."""
    sql_port: int = field(default_factory=free_port)
    status_port: int = field(default_factory=free_port)
    _runner: web.AppRunner | None = None
    _mysql: _Mysql | None = None

    async def start(self) -> None:
        self._mysql = _Mysql(lambda: _Session(self), identity_provider=_Users(self))
        await self._mysql.start_server(host="127.0.0.1", port=self.sql_port)
        routes = web.Application()
        routes.router.add_get("/ddl/history", self._history)
        routes.router.add_get("/mvcc/hex/{key}", self._mvcc)
        routes.router.add_get("/settings", self._settings)
        routes.router.add_get("/db-table/{id}", self._db_table)
        self._runner = web.AppRunner(routes, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.status_port).start()

    async def end_sessions(self) -> None:
        """As a balancer does with connections that are idle; it is there all the time."""
        assert self._mysql is not None
        await self._mysql.drop()
        self._mysql = _Mysql(lambda: _Session(self), identity_provider=_Users(self))
        await self._mysql.start_server(host="127.0.0.1", port=self.sql_port)

    async def kill(self) -> None:
        if self._runner is not None and self._mysql is not None:
            await self._mysql.drop()
            await self._runner.cleanup()
            self._runner = self._mysql = None

    @property
    def in_config(self) -> str:
        """Its part of a configuration."""
        return (
            f'kind = "tidb"\ntidb = ["127.0.0.1:{self.sql_port}"]\n'
            f'tidb-status = ["127.0.0.1:{self.status_port}"]\n'
        )

    # --- what TiKV has ---------------------------------------------------------------------

    def committed(self, key: bytes, start_ts: int, commit_ts: int, kind: int = 0) -> None:
        write = {"start_ts": start_ts, "commit_ts": commit_ts, "short_value": _text(b"row")}
        self._writes(key).append({"type": kind, **write} if kind else write)

    def rolled_back(self, key: bytes, start_ts: int) -> None:
        self._writes(key).append({"type": 3, "start_ts": start_ts, "commit_ts": start_ts})

    def locked(self, key: bytes, start_ts: int) -> None:
        self.keys[key] = {"lock": {"start_ts": start_ts, "primary": _text(key)}}

    def _writes(self, key: bytes) -> list[Mapping[str, Any]]:
        info: Any = self.keys.setdefault(key, {"writes": []})
        writes: list[Mapping[str, Any]] = info["writes"]
        return writes

    # --- the status port -------------------------------------------------------------------

    async def _history(self, request: web.Request) -> web.Response:
        self.paths.append(request.path_qs)
        jobs = sorted(self.jobs, key=lambda job: job["id"])
        limit, start = request.query.get("limit"), request.query.get("start_job_id")
        if self.version in ("2.1", "3.0", "4.0"):
            start = None  # is not known there
        if start is not None and limit is None:
            return web.Response(status=400, text="start_job_id needs limit")
        if start is not None:
            jobs = [job for job in jobs if job["id"] <= int(start)]
        most = int(limit) if limit else self.history_page
        if most:
            jobs = jobs[-most:] if self.version in ("2.1", "3.0", "4.0") else jobs[::-1][:most]
        return web.json_response(jobs)

    async def _mvcc(self, request: web.Request) -> web.Response:
        self.paths.append(request.path_qs)
        key = bytes.fromhex(request.match_info["key"])
        value: dict[str, Any] = {"info": self.keys.get(key, {})}
        if self.region_errors:
            self.region_errors -= 1
            value = {"region_error": {"message": "epoch not match", "epoch_not_match": {}}}
        if self.version == "2.1":
            return web.json_response(value)
        answer: dict[str, Any] = {"key": key.hex().upper(), "value": value}
        if self.version != "3.0":
            answer["region_id"] = 2
        return web.json_response(answer)

    async def _settings(self, request: web.Request) -> web.Response:
        self.paths.append(request.path_qs)
        return web.json_response({"host": "0.0.0.0", "store": "tikv", "path": self.pd})

    async def _db_table(self, request: web.Request) -> web.Response:
        self.paths.append(request.path_qs)
        found = self.tables.get(int(request.match_info["id"]))
        if found is None:
            return web.Response(status=400, text="[schema:1146]Table which ID = 9 does not exist.")
        schema, name = ({"O": each, "L": each.lower()} for each in found)
        return web.json_response(
            {"db_info": {"id": 5, "db_name": schema}, "table_info": {"name": name}}
            | {"schema_version": 42}
        )

    # --- the MySQL port --------------------------------------------------------------------

    def answer(self, sql: str) -> Answer | None:
        self.statements.append(sql)
        match sql:
            case "SHOW MASTER STATUS":
                if not self.may_show_master_status:
                    raise _refused(NO_PRIVILEGE, "you need the REPLICATION CLIENT privilege")
                return [("tidb-binlog", self.now(), "", "", "")], (
                    "File",
                    "Position",
                    "Binlog_Do_DB",
                    "Binlog_Ignore_DB",
                    "Executed_Gtid_Set",
                )
            case "SELECT @@tidb_current_ts":
                return [(str(self.now()),)], ("@@tidb_current_ts",)
            case "BEGIN" | "ROLLBACK":
                return None
        if "mysql.tidb_ddl_history" in sql:
            return self._table(sql)
        raise _refused(SYNTAX, f"no such statement in this script: {sql}")

    def _table(self, sql: str) -> Answer:
        if self.version != "6.5":
            raise _refused(NO_TABLE, "Table 'mysql.tidb_ddl_history' doesn't exist")
        if sql.startswith("SELECT job_id"):
            return [(job["id"],) for job in self.jobs], ("job_id",)
        match = re.search(r"IN \(([\d, ]+)\)", sql)
        assert match is not None
        wanted = {int(each) for each in match[1].split(",")}
        column = ResultColumn("job_meta", ColumnType.LONG_BLOB)
        rows = [(json.dumps(job).encode(),) for job in self.jobs if job["id"] in wanted]
        return rows, (column,)


def _refused(code: int, text: str) -> Exception:
    refusal: Exception = MysqlError(text, code)
    return refusal


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()


class _Session(Session):  # type: ignore[misc]  # the library has no types
    def __init__(self, tidb: ScriptedTidb) -> None:
        super().__init__()
        self.variables.set("version", f"8.0.11-TiDB-v{tidb.version}.0", force=True)
        self._tidb = tidb
        tidb.sessions += 1

    async def handle_query(self, sql: str, attrs: dict[str, str]) -> Any:
        if sql.startswith("SET "):
            return await super().handle_query(sql, attrs)
        return self._tidb.answer(sql)


class _Users(IdentityProvider):  # type: ignore[misc]  # the library has no types
    def __init__(self, tidb: ScriptedTidb) -> None:
        self._tidb = tidb

    def get_plugins(self) -> Any:
        return [NativePasswordAuthPlugin(), _CachingSha2(self._tidb)]

    async def get_user(self, username: str) -> Any:
        if username != self._tidb.user:
            return None
        if self._tidb.has_sha2:
            return User(username, None, _CachingSha2.name)
        plugin = NativePasswordAuthPlugin
        password = self._tidb.password
        secret = plugin.create_auth_string(password) if password else None
        return User(username, secret, plugin.name)


class _CachingSha2(AuthPlugin):  # type: ignore[misc]  # the library has no types
    """Without the cache: each login is a full one, as the first after a start of MySQL is.

    Source: MySQL sql/auth/sha2_password.cc; TiDB pkg/server/conn.go, authSha.
    """

    name = client_plugin_name = "caching_sha2_password"

    def __init__(self, tidb: ScriptedTidb) -> None:
        self._tidb = tidb

    async def auth(self, auth_info: Any = None) -> AsyncIterator[Any]:
        nonce = bytes(range(1, 21))
        auth_info = yield nonce + b"\0"
        auth_info = yield b"\x04"  # the whole password, please
        if self._tidb.has_rsa and auth_info.data == b"\x02":
            key = rsa.generate_private_key(65537, 2048)
            auth_info = yield key.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
            sha1 = padding.OAEP(padding.MGF1(hashes.SHA1()), hashes.SHA1(), None)
            hidden = key.decrypt(auth_info.data, sha1)
            given = bytes(each ^ by for each, by in zip(hidden, cycle(nonce), strict=False))
        else:
            given = auth_info.data
        right = self._tidb.password.encode()
        yield Success(self._tidb.user) if given.rstrip(b"\0") == right else Forbidden()


class _Mysql(MysqlServer):  # type: ignore[misc]  # the library has no types
    """With connections that end when it does."""

    def __init__(self, *words: Any, **named: Any) -> None:
        super().__init__(*words, **named)
        self._writers: list[asyncio.StreamWriter] = []

    async def _client_connected_cb(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._writers.append(writer)
        await super()._client_connected_cb(reader, writer)

    async def drop(self) -> None:
        self.close()
        for writer in self._writers:
            writer.transport.abort()
        for writer in self._writers:
            with contextlib.suppress(OSError):
                await writer.wait_closed()
