"""Object stores at ports of this machine: moto's S3, and Google's and Azure's by their doubles.

Those, fake-gcs-server and Azurite, come with `make setup-soak`.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import parse_qsl, urlsplit
from urllib.request import Request, urlopen

import pytest

from binlogd.snapshot.publishing.file_systems import ACCOUNT_KEY, file_system
from binlogd.spark.lake.place import LakeLocation
from tests.support.ports import free_port
from tests.support.s3 import s3_server
from tests.support.started import started
from tests.support.tried import tried

VENV = Path(__file__).parents[2] / ".venv"
AZURITE = VENV / "azurite" / "node_modules" / "azurite"
_ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's own, of its documentation."""
_NUMBERS = itertools.count()

Urls = Callable[[str], str]
"""The URL of a path in a bucket of its own."""


@contextmanager
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Urls]:
    """Amazon's interface."""
    del monkeypatch
    with s3_server() as server:
        yield server.url


@contextmanager
def gcs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Urls]:
    """Google's."""
    del monkeypatch
    program, port = VENV / "bin" / "fake-gcs-server", free_port()
    assert program.exists(), f"no {program}: run `make setup-soak`"
    where = f"127.0.0.1:{port}"
    more = ["-public-host", where, "-external-url", f"http://{where}", "-log-level", "error"]
    words = [program, "-backend", "memory", "-scheme", "http", "-host", "127.0.0.1"]
    with _running(
        [str(each) for each in (*words, "-port", port, *more)],
        f"http://{where}/_internal/healthcheck",
    ):
        tried("Google Cloud Storage, by fake-gcs-server", _module_version(program))

        def url(path: str) -> str:
            bucket = f"bucket-{next(_NUMBERS)}"
            body = json.dumps({"name": bucket}).encode()
            made = Request(
                f"http://{where}/storage/v1/b?project=p", body, {"Content-Type": "application/json"}
            )
            urlopen(made, timeout=30).close()
            return f"gs://anonymous@{bucket}/{path}?endpoint_override={where}&scheme=http"

        yield url


@contextmanager
def azure(monkeypatch: pytest.MonkeyPatch) -> Iterator[Urls]:
    """Microsoft's, of an account without a hierarchy of names."""
    described = AZURITE / "package.json"
    assert described.exists(), f"no {AZURITE}: run `make setup-soak`"
    port = free_port()
    where = f"127.0.0.1:{port}"
    program = str(AZURITE / "dist" / "src" / "blob" / "main.js")
    more = ["--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent"]
    monkeypatch.setenv(ACCOUNT_KEY, _KEY)
    with _running(["node", program, "--blobPort", str(port), *more], f"http://{where}/"):
        tried("Azure Blob Storage, by Azurite", json.loads(described.read_text())["version"])

        def url(path: str) -> str:
            place = f"abfss://bucket-{next(_NUMBERS)}@{_ACCOUNT}.dfs.core.windows.net/{path}"
            found = f"{place}?endpoint_override={where}&scheme=http"
            system, root = file_system(found)
            system.create_dir(root.split("/")[0])
            return found

        yield url


@contextmanager
def by_proxy(store: str, url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lets delta-rs ask a double by `tests.support.store_proxy`; all others ask it itself."""
    port, behind = free_port(), dict(parse_qsl(urlsplit(url).query))["endpoint_override"]
    words = [sys.executable, "-m", "tests.support.store_proxy", store, str(port)]
    plain = LakeLocation.delta_options

    def options(place: LakeLocation) -> dict[str, str]:
        there, proxy = f"http://{behind}", f"http://127.0.0.1:{port}"
        return {name: each.replace(there, proxy) for name, each in plain(place).items()}

    monkeypatch.setattr(LakeLocation, "delta_options", options)
    with _running([*words, behind.split(":")[1]], f"http://127.0.0.1:{port}/"):
        yield


STORES: dict[str, Callable[[pytest.MonkeyPatch], AbstractContextManager[Urls]]] = {
    "s3": s3,
    "gcs": gcs,
    "azure": azure,
}


@contextmanager
def _running(words: list[str], asked: str) -> Iterator[None]:
    with (
        TemporaryDirectory() as directory,
        started(words, lambda: _answers(asked), directory=VENV.parent, log=Path(directory, "log")),
    ):
        yield


def _answers(url: str) -> bool:
    try:
        urlopen(url, timeout=5).close()
    except OSError as error:
        return hasattr(error, "code")  # it refuses, so it is there
    return True


def _module_version(program: Path) -> str:
    said = subprocess.run(
        ["go", "version", "-m", program], capture_output=True, text=True, check=True
    )
    return next(line.split()[2] for line in said.stdout.splitlines() if line.split()[:1] == ["mod"])
