"""Schema registries for the tests: a small one in this process, and Apicurio's, a real one.

Both have Confluent's interface, and pass one suite (test_schema_registry_contract.py). The small
one knows the compatibility BACKWARD, the usual one, as far as columns go. Apicurio's comes with
`make setup-soak`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from aiohttp import web

from binlogd.host.tls import ServerTls
from tests.support.ports import free_port
from tests.support.started import says_ok, started
from tests.support.tried import tried

APICURIO = Path(__file__).parents[2] / ".venv" / "apicurio"
_PROMOTED = {("int", "long"), ("float", "double"), ("string", "bytes"), ("bytes", "string")}


class SmallRegistry:
    """`serving` runs it. What the tests ask of it: `fails_with` (a status), `login`, `posted`."""

    def __init__(self) -> None:
        self.login = ""
        self.fails_with = 0
        self.posted: list[str] = []
        self.url = ""
        self._schemas: list[str] = []
        self._subjects: dict[str, list[int]] = {}
        self.levels: dict[str, str] = {}  # by subject; BACKWARD where none is set

    @asynccontextmanager
    async def serving(self, tls: ServerTls | None = None, port: int = 0) -> AsyncIterator[None]:
        """At `url`, while it lasts."""
        app = web.Application(middlewares=[self._admit])
        app.router.add_get("/schemas/types", self._types)
        app.router.add_get("/schemas/ids/{id}", self._schema)
        app.router.add_post("/subjects/{subject}/versions", self._register)
        app.router.add_get("/subjects/{subject}/versions/latest", self._newest)
        app.router.add_put("/config/{subject}", self._configure)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(
            runner, "127.0.0.1", port, ssl_context=tls.listener() if tls is not None else None
        )
        await site.start()
        at = runner.addresses[0][1]
        self.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{at}"
        try:
            yield
        finally:
            await runner.cleanup()

    def text_of(self, number: int) -> str:
        """A schema."""
        return self._schemas[number - 1]

    def latest(self, subject: str) -> str:
        """The newest schema of a subject."""
        return self.text_of(self._subjects[subject][-1])

    @web.middleware
    async def _admit(self, request: web.Request, handler: Any) -> web.StreamResponse:
        given = request.headers.get("Authorization", "")
        if self.login and given != f"Basic {base64.b64encode(self.login.encode()).decode()}":
            return _answer(401, {"error_code": 401, "message": "Unauthorized"})
        if self.fails_with:
            return _answer(self.fails_with, {"error_code": self.fails_with, "message": "as told"})
        made: web.StreamResponse = await handler(request)
        return made

    async def _types(self, request: web.Request) -> web.Response:
        del request
        return _answer(200, ["AVRO"])

    async def _schema(self, request: web.Request) -> web.Response:
        return _answer(200, {"schema": self.text_of(int(request.match_info["id"]))})

    async def _register(self, request: web.Request) -> web.Response:
        subject, text = request.match_info["subject"], (await request.json())["schema"]
        self.posted.append(subject)
        versions = self._subjects.get(subject, [])
        known = [self._schemas[each - 1] for each in versions]
        try:
            told = _incompatible(json.loads(known[-1]), json.loads(text)) if known else ""
            assert json.loads(text)["type"] in ("record", "string")
        except (ValueError, KeyError, AssertionError):
            return _answer(422, {"error_code": 42201, "message": "Invalid Avro schema"})
        if told and text not in known and self.levels.get(subject) != "NONE":
            return _answer(409, {"error_code": 409, "message": f"incompatible: {told}"})
        if text not in self._schemas:
            self._schemas.append(text)
        number = self._schemas.index(text) + 1
        if number not in versions:
            self._subjects[subject] = [*versions, number]
        return _answer(200, {"id": number})

    async def _newest(self, request: web.Request) -> web.Response:
        versions = self._subjects.get(request.match_info["subject"])
        if not versions:
            return _answer(404, {"error_code": 40401, "message": "Subject not found."})
        return _answer(200, {"version": len(versions), "schema": self._schemas[versions[-1] - 1]})

    async def _configure(self, request: web.Request) -> web.Response:
        level = (await request.json())["compatibility"]
        self.levels[request.match_info["subject"]] = level
        return _answer(200, {"compatibility": level})


def _answer(status: int, document: Any) -> web.Response:
    return web.Response(
        status=status,
        body=json.dumps(document).encode(),
        content_type="application/vnd.schemaregistry.v1+json",
    )


def _incompatible(old: Any, new: Any) -> str:
    """What of `new` cannot read what was written by `old`; "" where all can be read."""
    if isinstance(old, list) or isinstance(new, list):
        written, read = (each if isinstance(each, list) else [each] for each in (old, new))
        lost = [each for each in written if all(_incompatible(each, other) for other in read)]
        return f"{lost} is none of {read}" if lost else ""
    kinds = [each["type"] if isinstance(each, dict) else each for each in (old, new)]
    if kinds[0] != kinds[1]:
        return "" if tuple(kinds) in _PROMOTED else f"{kinds[0]} became {kinds[1]}"
    if kinds[0] != "record":
        return ""
    if old["name"] != new["name"]:
        return f"{old['name']} became {new['name']}"
    before = {each["name"]: each["type"] for each in old["fields"]}
    told = (
        _incompatible(before[each["name"]], each["type"])
        if each["name"] in before
        else f"{each['name']} has no default" * ("default" not in each)
        for each in new["fields"]
    )
    return next(filter(None, told), "")


@contextmanager
def apicurio(directory: Path) -> Iterator[str]:
    """The URL of a real registry in a process of its own, which keeps its schemas in memory."""
    jars = list(APICURIO.glob("apicurio-registry-app-*-runner.jar"))
    assert jars, f"no registry in {APICURIO}: run `make setup-soak`"
    port = free_port()
    apis = f"http://127.0.0.1:{port}/apis"
    words = [
        *("java", "-Xmx256m", "-XX:TieredStopAtLevel=1"),
        "-Dquarkus.http.host=127.0.0.1",
        f"-Dquarkus.http.port={port}",
        *("-jar", str(jars[0])),
    ]
    log, url = directory / "apicurio.log", f"{apis}/ccompat/v7"
    with started(words, lambda: says_ok(f"{url}/schemas/types"), directory=directory, log=log):
        with urlopen(f"{apis}/registry/v2/system/info", timeout=30) as info:
            tried("Apicurio registry", str(json.load(info)["version"]))
        yield url
