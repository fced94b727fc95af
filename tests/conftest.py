"""Fixtures that several kinds of tests share."""

from __future__ import annotations

import asyncio
import gc
import io
import logging
import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TypeVar

import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests.support.commit import commit
from tests.support.etcd import real_etcd
from tests.support.kafka import Kafka
from tests.support.mariadb import MariaDb
from tests.support.mysql_server import MySql
from tests.support.real_pd import pd_server
from tests.support.tried import imported_by, taken

if TYPE_CHECKING:
    from tests.support.browser import Browser

# how long an example takes says something about the machine only
settings.register_profile("binlogd", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# a gate says the same to everybody; other examples are looked for by hand and by `make soak`
settings.register_profile(
    "repeatable", settings.get_profile("binlogd"), derandomize=True, max_examples=25
)
settings.register_profile("brief", settings.get_profile("repeatable"), max_examples=15)
settings.load_profile("binlogd")


SLOWEST_FIRST = ("tests/integration/spark", "tests/e2e", "tests/integration", "tests/contract")
"""Directories; what lies elsewhere comes last."""
ONE_WORKER = ("spark", "kafka", "mysql")
"""Fixtures that take seconds of both cores to start: all tests of each go to one worker, those of
several with the first."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """A gate that leaves tests out in silence is none: `make test` and `make soak` set this."""
    parser.addoption(
        "--nothing-skipped",
        action="store_true",
        help="a test that is skipped has failed: its reason says what is missing here",
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and tests stay to the end: a collector that looks through them again and again takes
    a third of the time until they are there, for each worker, and a part of each test's."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in a hook of the same name
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """For `--dist loadgroup`: at the end no worker has a long test to itself."""
    if not config.pluginmanager.hasplugin("xdist"):
        return  # there are no groups

    def rank(item: pytest.Item) -> int:
        return next((n for n, slow in enumerate(SLOWEST_FIRST) if item.nodeid.startswith(slow)), 9)

    for item in items:
        if servers := [each for each in ONE_WORKER if each in _fixtures(item)]:
            item.add_marker(pytest.mark.xdist_group(servers[0]))
        elif _shares_with_its_file(item):
            item.add_marker(pytest.mark.xdist_group(item.path.name))
    items.sort(key=rank)


def pytest_collection_finish(session: pytest.Session) -> None:
    """A worker that cannot see the groups would start a Spark, a Kafka and a MySQL of its own: so
    it was with pytest 9.2 and xdist 3.8, without a word."""
    taken()  # what was read to make the tests belongs to none
    if session.config.getoption("loadgroup", default=False):
        alone = [
            item.nodeid
            for item in session.items
            if item.get_closest_marker("xdist_group") and "@" not in item.nodeid
        ]
        if alone:
            raise pytest.UsageError(f"xdist does not group {len(alone)} tests: {alone[0]}")


def _fixtures(item: pytest.Item) -> set[str]:
    """Those that a test names, and the ones that parameters of its fixtures stand for."""
    names = set(getattr(item, "fixturenames", ()))
    if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
        params = item.callspec.params
        own = names & params.keys()
        names |= {str(params[name]) for name in own if _defined(name, item.parent)}
    return names


@cache
def _defined(name: str, parent: pytest.Collector | None) -> Sequence[pytest.FixtureDef[object]]:
    """The fixtures of this name that a test may mean; a parameter of its own is none."""
    if parent is None:
        return ()
    return parent.session._fixturemanager.getfixturedefs(name, parent) or ()


def _shares_with_its_file(item: pytest.Item) -> bool:
    """Whether something is made once for the tests of its file: no two workers make it both."""
    made = [found for name in _fixtures(item) if (found := _defined(name, item.parent))]
    return any(each[-1].scope == "module" for each in made)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Of a test that has taken too long, where each of its tasks waits: a stack shows the loop."""
    report: pytest.TestReport = yield
    if report.skipped and item.config.getoption("--nothing-skipped"):
        report.outcome = "failed"
    if call.excinfo is not None and "from pytest-timeout" in str(call.excinfo.value):
        stacks = io.StringIO()
        for each in gc.get_objects():  # all_tasks wants a loop
            if isinstance(each, asyncio.Task) and not each.done():
                each.print_stack(file=stacks)
        report.sections.append(("Tasks that were waiting", stacks.getvalue()))
    return report


@pytest.fixture(autouse=True)
def _programs(request: pytest.FixtureRequest) -> Iterator[None]:
    """The JUnit file names those of others that a test has to do with (`tests.support.tried`),
    whether `make soak` alone runs it, and at which commit it ran."""
    commit()
    yield
    imported_by(request.module)
    told = request.node.user_properties
    if request.node.get_closest_marker("soak"):
        told.append(("form", "soak"))
    told += [("tried", f"{name} = {said}") for name, said in taken()]
    if told:
        told.append(("commit", commit()))


@pytest.fixture(autouse=True)
def _logging() -> Iterator[None]:
    """A command that a test runs sets up logging for a stream that ends with the test, and a target
    of the fuzzer switches it off."""
    yield
    structlog.reset_defaults()
    logging.disable(logging.NOTSET)


ServerT = TypeVar("ServerT", bound=MariaDb)


def _running(server: ServerT) -> Iterator[ServerT]:
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def mariadb_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDb]:
    """One private server for the whole run; tests take `mariadb`."""
    yield from _running(MariaDb(tmp_path_factory.mktemp("mariadb")))


@pytest.fixture
def mariadb(mariadb_server: MariaDb) -> MariaDb:
    """The server of this run, emptied of every schema that the test before left."""
    mariadb_server.reset()
    return mariadb_server


@pytest.fixture(scope="session")
def mysql_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MySql]:
    """One private server for the whole run; tests take `mysql`."""
    yield from _running(MySql(tmp_path_factory.mktemp("mysql")))


@pytest.fixture
def mysql(mysql_server: MySql) -> MySql:
    """The MySQL of this run, emptied of every schema that the test before left."""
    mysql_server.reset()
    return mysql_server


@pytest.fixture(params=["mariadb", "mysql"])
def each_server(request: pytest.FixtureRequest) -> MariaDb:
    """The test is run with each of them."""
    server = request.getfixturevalue(request.param)
    assert isinstance(server, MariaDb)
    return server


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A Chromium for the tests of a file."""
    from tests.support.browser import Browser  # selenium is slow to import

    made = Browser()
    yield made
    made.close()


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """One private broker for the whole run; tests take topics of their own."""
    broker = Kafka(tmp_path_factory.mktemp("kafka"))
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture(scope="session")
def real_etcd_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """One private etcd for the whole run; tests take keys of their own."""
    with ExitStack() as stack:
        directory = tmp_path_factory.mktemp("etcd")
        if os.access("/dev/shm", os.W_OK):  # it has no option to leave its syncs out
            directory = Path(stack.enter_context(TemporaryDirectory(dir="/dev/shm")))
        yield stack.enter_context(real_etcd(directory))


@pytest.fixture(scope="session")
def pd_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real pd-server, compiled; skips where that cannot be."""
    return pd_server(tmp_path_factory.mktemp("pd-server"))
