"""What the sink asks of a schema registry, of the small one of the tests and of a real one."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from itertools import count
from typing import Any

import aiohttp
import pytest

from binlogd.drainer.kafka.schema_registry import (
    NewSchema,
    RegistryOptions,
    SchemaRefused,
    SchemaRegistry,
)
from binlogd.tso import Tso
from tests.support.schema_registry import SmallRegistry, apicurio

_NUMBERS = count()
KINDS = ["small", pytest.param("apicurio", marks=pytest.mark.soak)]


@pytest.fixture(scope="module")
def apicurio_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with apicurio(tmp_path_factory.mktemp("apicurio")) as url:
        yield url


@pytest.fixture(params=KINDS)
async def url(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    if request.param == "apicurio":
        yield request.getfixturevalue("apicurio_url")
        return
    registry = SmallRegistry()
    async with registry.serving():
        yield registry.url


def schema(subject: str, **columns: Any) -> NewSchema:
    """Of rows with these columns; one without a default has it in a list."""
    fields = [
        {"name": name, "type": kind} if isinstance(kind, str) else {"name": name, **kind}
        for name, kind in columns.items()
    ]
    row = {"type": "record", "name": "Value", "namespace": "tidb.s.t", "fields": fields}
    envelope = [
        {"name": "before", "type": ["null", row], "default": None},
        {"name": "after", "type": ["null", "tidb.s.t.Value"], "default": None},
        {"name": "op", "type": "string"},
    ]
    text = {"type": "record", "name": "Envelope", "namespace": "tidb.s.t", "fields": envelope}
    return NewSchema(subject, json.dumps(text), "s.t", Tso(7))


NULLABLE = {"type": ["null", "string"], "default": None}


async def asked(method: str, url: str, document: Any = None) -> Any:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, url, json=document) as answer,
    ):
        assert answer.status == 200, await answer.text()
        return json.loads(await answer.read())


async def test_a_schema_has_one_id_by_which_anybody_reads_it(url: str) -> None:
    registry, subject = SchemaRegistry(RegistryOptions(url)), f"odd $%/{next(_NUMBERS)}-value"
    await registry.greet()
    first, wider = schema(subject, id="int"), schema(subject, id="int", v=NULLABLE)
    one, two, again = await registry.ids_of([first, wider, first])
    assert (one, one != two) == (again, True)
    assert await registry.ids_of([wider._replace(subject="other")]) == [two]
    for number, text in ((one, first.text), (two, wider.text)):
        found = (await asked("GET", f"{url}/schemas/ids/{number}"))["schema"]
        assert json.loads(found) == json.loads(text)


async def test_a_schema_that_is_not_compatible_is_refused_until_the_subject_allows_it(
    url: str,
) -> None:
    registry, subject = SchemaRegistry(RegistryOptions(url)), f"strict.{next(_NUMBERS)}-value"
    narrow = schema(subject, id="int", a="string", b="long")
    await registry.ids_of([narrow])
    await asked("PUT", f"{url}/config/{subject}", {"compatibility": "BACKWARD"})
    changed = schema(subject, id="int", b="string", c="int")
    with pytest.raises(SchemaRefused) as refused:
        await registry.ids_of([changed])
    said = str(refused.value)
    assert f"the schema of s.t as the next of the subject {subject}, at commit_ts 7" in said
    assert "against its newest version: added c; gone a; changed b; HTTP 409" in said
    assert f"(PUT {url}/config/{subject} " in said
    assert refused.value.skip_ts == 7
    (before,) = await registry.ids_of([narrow])
    await asked("PUT", f"{url}/config/{subject}", {"compatibility": "NONE"})
    (after,) = await registry.ids_of([changed])
    assert after != before


async def test_columns_that_come_with_a_default_and_go_are_compatible(url: str) -> None:
    registry, subject = SchemaRegistry(RegistryOptions(url)), f"evolves.{next(_NUMBERS)}-value"
    await registry.ids_of([schema(subject, id="int", a="string")])
    await asked("PUT", f"{url}/config/{subject}", {"compatibility": "BACKWARD"})
    later = [
        schema(subject, id="int", a="string", v=NULLABLE),
        schema(subject, id="int", v=NULLABLE, w={"type": "int", "default": 5}),
        schema(subject, id="long", v=NULLABLE, w={"type": "int", "default": 5}),
    ]
    assert len(set(await registry.ids_of(later))) == 3


async def test_what_is_no_schema_is_refused(url: str) -> None:
    wrong = NewSchema(f"wrong.{next(_NUMBERS)}-key", '{"type": "rec"}', "s.t", Tso(7))
    with pytest.raises(SchemaRefused, match=r"s\.t as the next of the subject wrong.*HTTP 422"):
        await SchemaRegistry(RegistryOptions(url)).ids_of([wrong])
