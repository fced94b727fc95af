"""The description of the API: valid, and equal to what is routed."""

from __future__ import annotations

from pathlib import Path

from openapi_spec_validator import OpenAPIV31SpecValidator

from binlogd.serving.routes.application import application
from binlogd.serving.routes.events import Hub
from binlogd.serving.routes.guard import Guard
from binlogd.serving.routes.openapi import description
from tests.integration.node.test_node import standing


def test_the_description_is_valid() -> None:
    OpenAPIV31SpecValidator(description()).validate()


async def test_every_route_is_described_and_everything_described_is_routed(tmp_path: Path) -> None:
    async with standing(tmp_path) as alone:
        routes = application(alone.node, Guard(lambda: ""), Hub(lambda: b"")).router.routes()
    routed = {
        (route.method.lower(), route.resource.canonical)
        for route in routes
        if route.resource is not None and route.method != "HEAD"
    }
    described = {
        (method, path) for path, methods in description()["paths"].items() for method in methods
    }
    assert described == routed


def test_every_operation_has_a_name_of_its_own_and_says_what_it_is_for() -> None:
    operations = [each for path in description()["paths"].values() for each in path.values()]
    assert len({each["operationId"] for each in operations}) == len(operations)
    assert all(each["summary"] and each["responses"] for each in operations)
