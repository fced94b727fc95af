"""Programs and libraries of others that a test has to do with, in the versions that they say of
themselves.

Whatever starts or asks one says so while a test runs. pytest writes it into the JUnit file, as the
property `tried` of that test, and `tests.compatibility` makes a page of it. A double of a program
is none.
"""

from __future__ import annotations

from importlib import metadata
from types import ModuleType

LIBRARIES = {
    "deltalake": "Delta Lake, by deltalake",
    "pyiceberg": "Iceberg, by pyiceberg",
    "pyspark": "Spark",
    "moto": "S3, by moto",
    "opentelemetry-proto": "OpenTelemetry's messages (OTLP)",
    "prometheus-client": "Prometheus' text format, by prometheus-client",
    "promql-parser": "PromQL, by promql-parser",
}
"""Those that say in Python's metadata which version they are; by the names of their packages."""
_BY_MODULE = {
    "deltalake": "deltalake",
    "pyiceberg": "pyiceberg",
    "opentelemetry": "opentelemetry-proto",
    "prometheus_client": "prometheus-client",
}
"""What a test module imports only to hold something against it."""

_of_this_test: set[tuple[str, str]] = set()


def tried(program: str, version: str) -> None:
    """The test that runs has to do with this program."""
    _of_this_test.add((program, version))


def library(package: str) -> None:
    """It has to do with one of LIBRARIES, which is installed here."""
    tried(LIBRARIES[package], metadata.version(package))


def imported_by(module: ModuleType) -> None:
    """It has to do with the libraries that its module imports by name."""
    for value in vars(module).values():
        name = value.__name__ if isinstance(value, ModuleType) else _home(value)
        if package := _BY_MODULE.get(name.partition(".")[0]):
            library(package)


def _home(value: object) -> str:
    name = getattr(value, "__module__", None)
    return name if isinstance(name, str) else ""


def taken() -> list[tuple[str, str]]:
    """What was said since the last time, in order."""
    found = sorted(_of_this_test)
    _of_this_test.clear()
    return found
