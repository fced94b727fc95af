"""Iceberg catalogs for the tests, each described to pyiceberg as a user describes it.

SQL needs no server. REST is Apache Iceberg's own and Hive a Metastore (`make setup-soak`), Glue is
moto's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyiceberg import catalog
from pyiceberg.utils.config import Config

from tests.support.hive_metastore import hive_metastore
from tests.support.ports import free_port
from tests.support.s3 import s3_server
from tests.support.started import says_ok, started
from tests.support.tried import library, tried

NAME = "names"
"""Of the catalog in pyiceberg's configuration."""
JARS = Path(__file__).parents[2] / ".venv" / "iceberg-rest"


def described(monkeypatch: pytest.MonkeyPatch, **properties: str) -> None:
    """Tells pyiceberg of a catalog, here and in processes that begin here."""
    for name, value in properties.items():
        key = name.upper().replace("_", "__") if name.startswith(("glue", "s3")) else name.upper()
        monkeypatch.setenv(f"PYICEBERG_CATALOG__{NAME.upper()}__{key}", value)
    monkeypatch.setattr(catalog, "_ENV_CONFIG", Config())


@contextmanager
def sql_catalog(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A SQLite file."""
    described(monkeypatch, uri=f"sqlite:///{directory / 'names.db'}")
    yield


@contextmanager
def rest_catalog(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A real server in a process of its own."""
    jars = list(JARS.glob("iceberg-open-api-*-test-fixtures.jar"))
    assert jars, f"no REST catalog in {JARS}: run `make setup-soak`"
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    told = {
        "CATALOG_URI": f"jdbc:sqlite:{directory / 'rest.db'}",
        "CATALOG_WAREHOUSE": (directory / "warehouse").as_uri(),
        "CATALOG_REST_PORT": str(port),
    }
    java = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{JARS}/*"]
    with started(
        [*java, "org.apache.iceberg.rest.RESTCatalogServer"],
        lambda: says_ok(f"{url}/v1/config"),
        directory=directory,
        log=directory / "rest.log",
        environ={**os.environ, **told},
    ):
        tried("Iceberg's REST catalog", jars[0].name.split("-")[3])
        described(monkeypatch, uri=url)
        yield


@contextmanager
def glue_catalog(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """AWS Glue's interface, by moto."""
    del directory
    library("moto")
    with s3_server() as server:
        where = f"http://127.0.0.1:{server.port}"
        for name, value in {"ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b"}.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        described(monkeypatch, type="glue", glue_endpoint=where, glue_region="us-east-1")
        yield


@contextmanager
def hive_catalog(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Hive Metastore in a process of its own."""
    with hive_metastore(directory) as uri:
        described(monkeypatch, type="hive", uri=uri)
        yield


CATALOGS = {"sql": sql_catalog, "rest": rest_catalog, "glue": glue_catalog, "hive": hive_catalog}
