"""The page at every width, in light and dark, of a replica whose times lie in another year."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.appliance import Appliance, into_mariadb
from tests.support.browser import Browser
from tests.support.mariadb import MariaDb
from tests.support.shop import Shop, send

WIDTHS = (390, 820, 1280, 1440, 1920)
NOVEMBER_2023_MS = 1_700_545_818_000
_LEAVING = (Path(__file__).parents[1] / "support" / "leaving.js").read_text()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    made = Browser()
    yield made
    made.close()


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
