"""A schema registry that has Confluent's interface: schemas by subject, each with an id; and the
schemas of all tables, registered there before the first message that has them.

Invariant. A message is encoded by a schema that the registry has given an id. Why it holds: the
schemas of a group of transactions are registered before the Kafka transaction begins that it goes
in, so that a registry that refuses or is away leaves nothing behind in Kafka.
Source: docs.confluent.io, Schema Registry API Reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
import structlog

from binlogd.drainer.kafka.avro import AvroTable, difference, twins
from binlogd.drainer.kafka.debezium import Document
from binlogd.drainer.txn import Dml, Txn
from binlogd.errors import CorruptRow, DownstreamUnavailable, RowMismatch, Stuck
from binlogd.host.http import HttpAnswer, HttpSession, NoAnswer, basic_login, http_session
from binlogd.host.tls import ClientTls
from binlogd.tidb.model import TableAt
from binlogd.tso import Tso

ANSWER_S = 20.0
ANSWER_BYTES_MAX = 16 << 20
KEPT_MAX = 8192
"""Schemas and tables; when there are more, all are forgotten, and registered again."""
_JSON = "application/vnd.schemaregistry.v1+json"
_INCOMPATIBLE, _INVALID = 409, 422
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RegistryOptions:
    """With a user it is logged in to; without `tls`, https trusts what this machine does."""

    url: str
    user: str = ""
    password: str = field(default="", repr=False)
    tls: ClientTls | None = None


class NewSchema(NamedTuple):
    """What is to be registered, and for which table of which transaction."""

    subject: str
    text: str
    table: str
    commit_ts: Tso


class SchemaRefused(Stuck):
    """The schema of a table cannot be that of its messages; none of them is sent."""


class SchemaRegistry:
    """Raises DownstreamUnavailable, which says what to check."""

    def __init__(self, options: RegistryOptions) -> None:
        self._options = options
        self._url = options.url.rstrip("/")

    async def greet(self) -> None:
        """Changes nothing there."""
        if self._options.user and not self._url.startswith("https:"):
            log.warning(
                "schema_registry_login_in_plain_text",
                url=self._url,
                todo="give syncer.to.schema-registry an address with https",
            )
        async with http_session(ANSWER_S, self._options.tls) as asking:
            answer = await self._ask(asking, "GET", "/schemas/types")
        if answer.status != 200 or "AVRO" not in self._decoded(answer, list[str]):
            raise self._away(f"offers no Avro: {answer.refusal}", _TODO_URL)

    async def ids_of(self, wanted: Sequence[NewSchema]) -> list[int]:
        """Registers what is not there yet. Raises SchemaRefused for the first that is refused."""
        found = []
        async with http_session(ANSWER_S, self._options.tls) as asking:
            for each in wanted:
                path = f"/subjects/{quote(each.subject, safe='')}/versions"
                answer = await self._ask(asking, "POST", path, {"schema": each.text})
                if answer.status in (_INCOMPATIBLE, _INVALID):
                    raise await self._refused(asking, each, answer)
                if answer.status != 200:
                    raise self._away(f"does not register {each.subject}: {answer.refusal}")
                found.append(self._decoded(answer, _Registered).id)
        return found

    async def _refused(
        self, asking: HttpSession, wanted: NewSchema, answer: HttpAnswer
    ) -> SchemaRefused:
        subject = quote(wanted.subject, safe="")
        latest = await self._ask(asking, "GET", f"/subjects/{subject}/versions/latest")
        change = ""
        if latest.status == 200:
            change = difference(self._decoded(latest, _Version).schema, wanted.text)
        against = f"; against its newest version: {change}" if change else ""
        return SchemaRefused(
            f"the schema registry at {self._url} refuses the schema of {wanted.table} as the next"
            f" of the subject {wanted.subject}, at commit_ts {wanted.commit_ts}{against};"
            f" {answer.refusal}",
            todo=f"set the compatibility of the subject (PUT {self._url}/config/{subject}"
            ' {"compatibility": "NONE"}) until the Drainer has tried again, or leave the table out'
            " (syncer.ignore-table)",
            skip_ts=wanted.commit_ts,
        )

    async def _ask(
        self, asking: HttpSession, method: str, path: str, body: dict[str, str] | None = None
    ) -> HttpAnswer:
        headers = {"Accept": f"{_JSON}, application/json", "Content-Type": _JSON}
        user = self._options.user
        if user:
            headers |= basic_login(user, self._options.password)
        try:
            answer = await asking.ask(
                method,
                f"{self._url}{path}",
                bytes_max=ANSWER_BYTES_MAX,
                headers=headers,
                data=msgspec.json.encode(body) if body is not None else None,
                allow_redirects=False,
            )
        except NoAnswer as error:
            todo = _TODO_TLS if error.is_untrusted else _TODO_URL
            raise self._away(f"does not answer: {error}", todo) from error
        if answer.status == 401:
            who = f"the login of {user}" if user else "a request without a login"
            raise self._away(f"refuses {who}: {answer.refusal}", _TODO_LOGIN)
        if answer.status == 403:
            refusal = f"lets {user or 'nobody'} not do {method} {path}: {answer.refusal}"
            raise self._away(refusal, "give it the right to read and to write these subjects")
        return answer

    def _decoded(self, answer: HttpAnswer, kind: Any) -> Any:
        try:
            return msgspec.json.decode(answer.body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._away(f"answers what no registry does: {error}", _TODO_URL) from error

    def _away(self, cause: str, todo: str = "") -> DownstreamUnavailable:
        return DownstreamUnavailable(f"the schema registry at {self._url} {cause}", todo=todo)


_TODO_URL = (
    "check syncer.to.schema-registry, and that a registry with Confluent's interface is there"
)
_TODO_TLS = (
    "check that syncer.to.security.ssl-ca holds the CA of the registry, and that"
    " syncer.to.schema-registry names the host as its certificate does"
)
_TODO_LOGIN = "check syncer.to.schema-registry-user and syncer.to.schema-registry-password"


class _Registered(msgspec.Struct):
    id: int


class _Version(msgspec.Struct):
    schema: str


# --- the schemas of tables ---------------------------------------------------------------------


class AvroSchemas:
    """An `Encoding`; `topic_of` a database and a table is the topic, which names the subjects."""

    def __init__(self, registry: SchemaRegistry, topic_of: Callable[[str, str], str]) -> None:
        self._registry, self._topic_of = registry, topic_of
        self._tables: dict[tuple[int, int], AvroTable] = {}
        self._ids: dict[tuple[str, str], int] = {}
        self._owners: dict[str, str] = {}

    async def greet(self) -> None:
        """See SchemaRegistry."""
        await self._registry.greet()

    async def register(self, txns: Sequence[Txn]) -> None:
        """Before messages of these are made. Raises DownstreamUnavailable, SchemaRefused."""
        if max(len(self._tables), len(self._ids)) > KEPT_MAX:
            self._tables, self._ids, self._owners = {}, {}, {}
        made: dict[tuple[int, int], AvroTable] = {}
        wanted: dict[tuple[str, str], NewSchema] = {}
        for txn in txns:
            for table in [change.table for change in txn.changes] if isinstance(txn, Dml) else ():
                place = table.info.id, table.version
                known = made.get(place) or self._tables.get(place)
                if known is not None and known.table is table:
                    continue
                made[place] = self._made(table, txn.commit_ts)
                for each in made[place].messages:
                    if (each.subject, each.text) not in self._ids:
                        new = NewSchema(each.subject, each.text, table.label, txn.commit_ts)
                        wanted[each.subject, each.text] = new
        ids = await self._registry.ids_of(list(wanted.values())) if wanted else []
        self._ids.update(zip(wanted, ids, strict=True))
        for encoded in made.values():
            for each in encoded.messages:
                each.schema_id = self._ids[each.subject, each.text]
        self._tables |= made

    def of_table(self, table: TableAt) -> AvroTable:
        """See Encoding. Of a table that was registered."""
        return self._tables[table.info.id, table.version]

    def ddl(self, document: Document) -> bytes:
        """Not to be asked for: a topic has messages of one schema, those of rows."""
        raise AssertionError(f"a DDL is no message in Avro (settings/effects.py): {document}")

    def _made(self, table: TableAt, commit_ts: Tso) -> AvroTable:
        try:
            made = AvroTable(table, self._topic_of(table.database, table.info.name))
        except CorruptRow as error:
            raise RowMismatch(table.label, commit_ts, str(error)) from error
        for kind, name in (("the topic", made.topic), ("the schema", made.name)):
            owner = self._owners.setdefault(f"{kind} {name}", table.label)
            if owner != table.label:
                raise _collision(table, commit_ts, f"{kind} {name} is that of {owner} already")
        same = twins(table)
        if same:
            problem = f"its columns {' and '.join(same)} have one name in Avro"
            raise _collision(table, commit_ts, problem)
        return made


def _collision(table: TableAt, commit_ts: Tso, problem: str) -> SchemaRefused:
    return SchemaRefused(
        f"{table.label} cannot be written in Avro, at commit_ts {commit_ts}: {problem}",
        todo="rename one of them, upstream or (a table) by syncer.table-migrate-rule, or leave the"
        " table out (syncer.ignore-table)",
        skip_ts=commit_ts,
    )
