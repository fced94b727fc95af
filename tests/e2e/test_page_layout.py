"""The page at every width, in light and dark, of a replica whose times lie in another year."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.appliance import Appliance, into_mariadb
from tests.support.browser import Browser
from tests.support.mariadb import MariaDb
from tests.support.ports import free_port
from tests.support.shop import Shop, send

WIDTHS = (390, 820, 1280, 1440, 1920)
NOVEMBER_2023_MS = 1_700_545_818_000
_LEAVING = (Path(__file__).parents[1] / "support" / "leaving.js").read_text()


@pytest.fixture(scope="module")
def recorded(
    tmp_path_factory: pytest.TempPathFactory, mariadb_server: MariaDb
) -> Iterator[Appliance]:
    """A node that stops at a transaction of another year, after some that are applied."""
    mariadb_server.reset()
    shop = Shop(NOVEMBER_2023_MS)
    machine = Appliance(
        tmp_path_factory.mktemp("recorded"),
        history=shop.history(),
        syncer=into_mariadb(mariadb_server),
    )
    machine.start()
    send(machine.target, *shop.ddls(), *(shop.make(number, "Ada") for number in range(1, 9)))
    machine.wait_until_applied(shop.changes[-1])
    send(machine.target, shop.of_no_table())
    machine.wait(lambda status: status["drainer"]["state"] == "stuck")
    yield machine
    machine.close()


def opened(browser: Browser, machine: Appliance) -> None:
    browser.driver.get(f"http://127.0.0.1:{machine.port}/")
    browser.wait_for("#live", "live")
    browser.wait_for("#figures", "Lag")


def test_nothing_leaves_its_card_and_nothing_is_cut(browser: Browser, recorded: Appliance) -> None:
    opened(browser, recorded)
    assert "Nov 21 2023" in browser.wait_for("#shards", "2023")
    browser.click("#attention .danger")  # its dialog counts too
    for scheme in ("light", "dark"):
        for width in WIDTHS:
            browser.look(width=width, scheme=scheme)
            script = browser.driver.execute_script
            assert (width, scheme, script(_LEAVING)) == (width, scheme, [])
            assert script("return document.documentElement.scrollWidth") <= width
    browser.look()


def test_a_figure_is_told_once_and_the_zone_of_all_times_once(
    browser: Browser, recorded: Appliance
) -> None:
    opened(browser, recorded)
    names = browser.driver.execute_script(
        "return [...document.querySelectorAll('#figures dt')].map(each => each.innerText)"
    )
    assert names == ["Lag", "Received", "Applied", "Applied up to", "Free space"]
    applied = browser.text("#figures")
    assert "Nov 21 2023" in applied
    assert "saved" in applied
    assert browser.all("#pictures .now") == [], "the tiles tell what is now"
    assert "peak" in browser.wait_for("#pictures", "peak")
    assert "at most" not in browser.text("main")
    zone = browser.driver.execute_script(
        "return Intl.DateTimeFormat().resolvedOptions().timeZone || 'UTC'"
    )
    assert browser.text("body").count(f"times in {zone}") == 1


# --- what a page says before there is anything to see ------------------------------------------


def test_where_it_comes_from_and_goes_to_is_told(browser: Browser, recorded: Appliance) -> None:
    opened(browser, recorded)
    flow = browser.wait_for("#flow", "MySQL")
    assert "TiDB, cluster 42" in flow
    assert 'kind = "standalone"' in flow
    address = recorded.status()["drainer"]["downstream"]["address"]
    assert re.search(rf"MySQL or MariaDB\s+{address}", flow)
    assert "not connected" not in flow
    assert not browser.one("#begin").is_displayed()


def test_a_fresh_page_says_how_a_tidb_gets_here_and_that_nothing_is_connected(
    browser: Browser, tmp_path: Path
) -> None:
    machine = Appliance(tmp_path)
    machine.configure(f'[syncer]\ndb-type = "mysql"\n[syncer.to]\nport = {free_port()}\n')
    try:
        machine.start()
        opened(browser, machine)
        ways = [each.text for each in browser.all("#begin li")]
        assert len(ways) == 3
        for way, key in zip(ways, ('kind = "pd"', "binlog-socket", "path"), strict=True):
            assert key in way
        assert "docs/howto/replica.md" in browser.text("#begin")
        assert "not connected yet" in browser.text("#lanes")
        assert "has no lanes" not in browser.text("#lanes")
        assert "not connected yet" in browser.text("#flow")
        assert browser.driver.execute_script(_LEAVING) == []
        assert browser.complaints() == []
    finally:
        machine.close()


def test_a_downstream_without_lanes_is_called_so(browser: Browser, tmp_path: Path) -> None:
    machine = Appliance(tmp_path, syncer='[syncer]\ndb-type = "sqlite"\n')
    try:
        machine.start()
        opened(browser, machine)
        assert "has no lanes" in browser.wait_for("#lanes", "lanes")
        assert "not connected" not in browser.text("#flow")
        assert "SQLite" in browser.text("#flow")
    finally:
        machine.close()
