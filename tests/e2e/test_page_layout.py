"""The page at every width, in light and dark, of a replica whose times lie in another year."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.remote.webelement import WebElement

from tests.support.appliance import Appliance, into_mariadb
from tests.support.browser import Browser
from tests.support.mariadb import MariaDb
from tests.support.ports import free_port
from tests.support.shop import Shop, send

WIDTHS = (390, 820, 1024, 1280, 1440)
HEIGHT = 3600
"""The whole page, so that no scroll bar counts and the pictures show all of it."""
TOLERANCE_PX = 12
"""For another version of the browser, and its fonts."""
GOLDEN = Path(__file__).parents[1] / "golden" / "page_layout.json"
"""Made anew, and looked at, where the page is to look otherwise: remove it, and run the test."""
CONTRAST_MIN = 4.5
NOVEMBER_2023_MS = 1_700_545_818_000
_SUPPORT = Path(__file__).parents[1] / "support"
_LEAVING = (_SUPPORT / "leaving.js").read_text()
_LAYOUT = (_SUPPORT / "page_layout.js").read_text()
_CONTRASTS = (_SUPPORT / "contrasts.js").read_text()


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


def moved(parts: dict[str, list[int]], expected: dict[str, list[int]]) -> list[str]:
    """What lies in another place than expected, or is new, or is gone."""
    found = [f"{name}: new or gone" for name in sorted(parts.keys() ^ expected.keys())]
    for name in parts.keys() & expected.keys():
        left, width, row = (a - b for a, b in zip(parts[name], expected[name], strict=True))
        if max(abs(left), abs(width)) > TOLERANCE_PX or row:
            found.append(f"{name}: {parts[name]}, expected {expected[name]}")
    return found


def test_every_part_lies_where_it_was_and_nothing_leaves_its_card_or_is_cut(
    browser: Browser, recorded: Appliance, tmp_path: Path
) -> None:
    opened(browser, recorded)
    assert "Nov 21 2023" in browser.wait_for("#shards", "2023")
    script = browser.driver.execute_script
    found: dict[str, Any] = {"parts": {}, "colours": {}}
    wrong: list[str] = []
    for scheme in ("light", "dark"):
        for width in WIDTHS:
            browser.look(width=width, height=HEIGHT, scheme=scheme)
            faults = script(_LEAVING)
            if script("return document.documentElement.scrollWidth") > width:
                faults.append("the page is wider than its window")
            layout = script(_LAYOUT)
            found["colours"][scheme] = layout["colours"]
            if moved(layout["parts"], found["parts"].setdefault(str(width), layout["parts"])):
                faults.append("light and dark differ in more than colours")
            if width == WIDTHS[-1]:
                weak = [each for each in script(_CONTRASTS) if each["ratio"] < CONTRAST_MIN]
                faults += [f"cannot be read: {each}" for each in weak]
            browser.shot(tmp_path / f"{scheme}-{width}.png")
            wrong += [f"{width} {scheme}: {each}" for each in faults]
    browser.click("#attention .danger")
    wrong += script(_LEAVING)
    browser.look()
    if not GOLDEN.exists():
        GOLDEN.write_text(json.dumps(found, indent=1) + "\n")
    expected = json.loads(GOLDEN.read_text())
    for at in map(str, WIDTHS):
        wrong += [f"{at}: {each}" for each in moved(found["parts"][at], expected["parts"][at])]
    assert wrong == [], f"see the pictures in {tmp_path}"
    assert found["colours"] == expected["colours"]


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


def _since(plot: WebElement) -> str:
    return (plot.get_attribute("aria-label") or "").partition("since")[2]


def test_the_tables_with_the_most_rows_are_told(browser: Browser, recorded: Appliance) -> None:
    opened(browser, recorded)
    assert re.search(r"shop\.orders\s+8\b", browser.wait_for("#tables", "shop"))


def test_a_picture_shows_a_day_too_and_one_peak_does_not_flatten_the_rest(
    browser: Browser, recorded: Appliance
) -> None:
    opened(browser, recorded)
    plot = browser.one("#pictures svg")
    before = browser.wait(lambda: _since(plot))
    browser.click("#span label:nth-of-type(2)")
    browser.wait(lambda: _since(plot) != before)
    script = (
        "const done = arguments[0]; import('/page/chart.js').then(({highest}) => done("
        "[highest([...Array(99).fill(3), 5000], 1), highest([...Array(90).fill(3), 9], 1)]))"
    )
    assert browser.driver.execute_async_script(script) == [6, 9]


_MANY_TABLES = """
const row = document.querySelector('#tables tbody tr');
for (let more = 0; more < 7; more++) row.after(row.cloneNode(true));
const at = ['shards', 'lanes', 'tables'].map(each =>
    document.getElementById(each).closest('.card').getBoundingClientRect());
const ends = [...new Set(at.map(each => each.left))].map(
    left => Math.max(...at.filter(each => each.left === left).map(each => each.bottom)));
return [Math.max(...ends) - Math.min(...ends), Math.min(...at.map(each => each.height))];
"""


def test_with_few_lanes_and_many_tables_no_hole_is_left_that_a_card_would_fill(
    browser: Browser, recorded: Appliance
) -> None:
    browser.look(height=HEIGHT)
    opened(browser, recorded)
    browser.wait_for("#tables", "shop")
    browser.wait_for("#lanes", "lane 1")
    hole, least = browser.driver.execute_script(_MANY_TABLES)
    browser.look()
    assert hole < least


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
