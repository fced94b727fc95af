"""The page in a real browser, on a real process that replicates into a real MariaDB."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from openapi_schema_validator import OAS31Validator
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from binlogd.serving.routes.openapi import description
from binlogd.snapshot.publishing.publish import publish
from tests.support.appliance import Appliance, into_mariadb
from tests.support.browser import Browser
from tests.support.mariadb import MariaDb
from tests.support.ports import free_port
from tests.support.shop import HOSTILE, Shop, send
from tests.support.snapshots import manifest

TOKEN = "a-token-of-the-tests"
CONTRAST_MIN = 4.5
_CONTRASTS = (Path(__file__).parents[1] / "support" / "contrasts.js").read_text()


@dataclass
class Scene:
    """A shop whose orders are replicated, and somebody who looks."""

    machine: Appliance
    shop: Shop
    browser: Browser
    numbers: Iterator[int]

    def order(self, customer: str = "Ada") -> int:
        """A new order, acknowledged; its number."""
        number = next(self.numbers)
        send(self.machine.target, self.shop.make(number, customer))
        return number

    def open(self) -> Browser:
        """The page anew, without a token."""
        self.browser.driver.get(f"http://127.0.0.1:{self.machine.port}/")
        forgotten = "const had = sessionStorage.length > 0; sessionStorage.clear(); return had"
        if self.browser.driver.execute_script(forgotten):
            self.browser.driver.refresh()
        self.browser.wait_for("#live", "live")
        self.browser.wait_for("#figures", "Lag")
        return self.browser

    def look_up(self, kind: str, **fields: str) -> None:
        """Fills the form in and sends it; gives the token when it is asked for."""
        self.browser.click(f"input[name=kind][value={kind}] + span")
        for name, text in fields.items():
            field = self.browser.one(f"#look-form input[name={name}]")
            field.clear()
            field.send_keys(text)
        self.browser.click("#look-form button")
        self.give_token()

    def give_token(self, token: str = TOKEN) -> None:
        """Types it into the dialog, where there is one."""
        shown = "return document.getElementById('token').open"
        busy = "return document.querySelector('.busy') !== null"
        script = self.browser.driver.execute_script
        self.browser.wait(lambda: script(shown) or not script(busy))
        if script(shown):
            self.browser.one("#token-value").send_keys(token, Keys.ENTER)


@pytest.fixture(scope="module")
def scene(
    tmp_path_factory: pytest.TempPathFactory, mariadb_server: MariaDb, browser: Browser
) -> Iterator[Scene]:
    mariadb_server.reset()
    shop = Shop(time.time_ns() // 1_000_000)
    machine = Appliance(tmp_path_factory.mktemp("page"), history=shop.history())
    machine.configure(
        '[upstream]\nschema-history = "ddl_history.json"\n'
        f'[security]\nadmin-token = "{TOKEN}"\n{into_mariadb(mariadb_server)}'
    )
    machine.start()
    send(machine.target, *shop.ddls())
    made = Scene(machine, shop, browser, count(1))
    made.order()
    yield made
    machine.close()


def test_state_and_figures_move_by_themselves(scene: Scene) -> None:
    browser = scene.open()
    assert "Pump online" in browser.text("#states")
    assert "Replication running" in browser.text("#states")
    assert "shard-3" in browser.text("#shards")
    assert "lane 0" in browser.text("#lanes")
    before = browser.text("#figures")
    ts = scene.shop.changes[-1]
    scene.order()
    browser.wait(lambda: str(scene.shop.changes[-1]) in browser.text("#figures"))
    assert ts < scene.shop.changes[-1]
    assert browser.text("#figures") != before
    browser.wait_for("#attention", "Nothing needs attention")
    assert browser.complaints() == []


def test_a_reload_shows_the_minutes_before(scene: Scene) -> None:
    browser = scene.open()
    assert len(browser.all("#pictures figure")) == 3
    drawn = (
        "return [...document.querySelectorAll('.chart.received .line')]"
        ".reduce((sum, each) => sum + each.getAttribute('d').split('L').length, 0)"
    )
    browser.wait(lambda: browser.driver.execute_script(drawn) > 4)
    points = browser.driver.execute_script(drawn)
    scene.open()
    assert browser.driver.execute_script(drawn) >= points, "not from the first second on again"
    label = browser.one(".chart.received").get_attribute("aria-label") or ""
    assert label.startswith("Binlogs received: now")


def test_a_ddl_is_listed_and_its_text_stays_text(scene: Scene) -> None:
    browser = scene.open()
    assert "<script>alert(1)</script>" in browser.wait_for("#ddls", "CREATE TABLE")
    assert "applied" in browser.text("#ddls")


def test_a_row_is_found_with_its_changes_and_its_value_stays_text(scene: Scene) -> None:
    number = scene.order(HOSTILE)
    send(scene.machine.target, scene.shop.pay(number))
    browser = scene.open()
    scene.look_up("row", table="shop.orders", row=f"id={number}")
    found = browser.wait_for("#found", "changed")
    assert "2 transactions, the newest first" in browser.text("#look-state")
    assert "'new' → 'paid'" in found.replace("\n", " ")
    assert HOSTILE.replace("'", "''") in found
    assert browser.driver.title != "owned"
    assert browser.all("#found img") == []
    assert browser.complaints() == []


def test_a_transaction_is_found_by_its_commit_ts_and_by_time(scene: Scene) -> None:
    scene.order("Grace")
    browser = scene.open()
    scene.look_up("ts", ts=str(scene.shop.changes[-1]))
    assert "'Grace'" in browser.wait_for("#found", "inserted")
    browser.click("input[name=kind][value=time] + span")
    set_from = "document.querySelector('#look-form [name=from]').value = '2020-01-01T00:00:00'"
    browser.driver.execute_script(set_from)
    browser.click("#look-form button")
    assert "CREATE DATABASE" in browser.wait_for("#found", "DDL")
    assert "in commit order" in browser.text("#look-state")


def test_what_makes_no_sense_is_answered_with_words(scene: Scene) -> None:
    browser = scene.open()
    scene.look_up("row", table="shop.orders", row="nme=x")
    assert "no column nme; its columns are id" in browser.wait_for("#look-state", "no column")


@pytest.mark.soak
def test_a_new_look_up_ends_the_former_of_the_page(scene: Scene) -> None:
    scene.order("Edsger")
    browser = scene.open()
    scene.look_up("newest")  # and the token is known
    browser.wait_for("#found", "shop.orders")
    click = "document.querySelector('#look-form button').click()"
    browser.driver.execute_script(f"{click}; setTimeout(() => {{ {click} }}, 300)")
    browser.wait_for("#look-state", "Reading the log")
    settled = "return document.querySelector('.busy') === null"
    browser.wait(lambda: browser.driver.execute_script(settled))
    assert "newest first" in browser.text("#look-state")


def test_an_unknown_table_is_told_with_near_names(scene: Scene) -> None:
    browser = scene.open()
    scene.look_up("row", table="shop.ordres")
    said = browser.wait_for("#look-state", "no table shop.ordres")
    assert "near: shop.orders" in said


def test_replication_is_paused_and_resumed_with_the_token_only(scene: Scene) -> None:
    browser = scene.open()
    browser.click("#pause")
    assert "Pause replication?" in browser.text("#sure")
    browser.click("#sure-yes")
    browser.wait(lambda: browser.one("#token").is_displayed())
    browser.one("#token-value").send_keys("a wrong one", Keys.ENTER)
    browser.wait_for("#token-text", "not the one")
    browser.one("#token-value").send_keys(TOKEN, Keys.ENTER)
    browser.wait_for("#states", "Replication paused")
    assert "Resume it when" in browser.wait_for("#attention", "Replication is paused")
    browser.wait_for("#figures", "replication is paused")
    browser.click("#attention button")
    browser.wait_for("#states", "Replication running")
    kept = "return [Object.keys(sessionStorage).length, localStorage.length, document.cookie]"
    assert browser.driver.execute_script(kept) == [1, 0, ""]
    browser.click("#forget")
    assert browser.driver.execute_script(kept) == [0, 0, ""]
    scene.machine.wait(lambda status: status["drainer"]["node_state"] == "online")


def test_the_link_of_binlogd_page_brings_the_token_and_takes_it_out_of_the_address(
    scene: Scene,
) -> None:
    browser = scene.open()
    browser.driver.get("about:blank")
    browser.driver.get(f"http://127.0.0.1:{scene.machine.port}/#token={TOKEN}")
    browser.wait_for("#live", "live")
    assert "token" not in browser.driver.current_url
    browser.click("#pause")
    browser.click("#sure-yes")
    browser.wait_for("#attention", "Replication is paused")
    assert not browser.one("#token").is_displayed()
    browser.click("#attention button")
    browser.wait_for("#states", "Replication running")


def test_what_is_stuck_says_what_to_do_and_is_skipped_by_hand(scene: Scene) -> None:
    browser = scene.open()
    send(scene.machine.target, scene.shop.of_no_table())
    ts = str(scene.shop.changes[-1])
    problem = browser.wait_for("#attention", "Replication is stuck")
    assert "not found table id: 77" in problem
    assert f"binlogd skip {ts}" in problem
    offered = [each.text for each in browser.all("#attention button")]
    assert offered == ["Look at it", "Try again", "Skip it…"], "after what to do, and last"
    browser.click("#attention button:nth-of-type(2)")
    scene.give_token()
    browser.wait_for("#acted", "tries again")
    browser.wait_for("#attention", "Replication is stuck")
    browser.click("#attention .danger")
    assert "never be applied" in browser.wait_for("#skip[open]", "for good?")
    assert browser.one("#attention .problem").is_displayed(), "it is asked beside the message"
    assert browser.driver.execute_script("return scrollY") == 0
    field = browser.one("#skip-form [name=ts]")
    assert field.get_attribute("value") == ts
    assert field.get_attribute("readonly"), "no other than that of the message"
    browser.driver.switch_to.active_element.send_keys("a table of the test", Keys.ENTER)
    browser.wait_for("#states", "Replication running")
    browser.wait_for("#attention", "Nothing needs attention")
    browser.click("#skips summary")
    assert "a table of the test" in browser.text("#skips")


def test_a_process_that_is_gone_is_said_and_comes_back_by_itself(scene: Scene) -> None:
    browser = scene.open()
    scene.machine.kill()
    assert "What you see is from" in browser.wait_for("#stale", "Not connected")
    scene.machine.start()
    browser.wait_for("#live", "live")
    browser.wait(lambda: not browser.one("#stale").is_displayed())


def test_who_looks_does_not_hold_up_the_end_of_the_process(scene: Scene) -> None:
    scene.open()
    scene.browser.one("#look-form button").click()  # a look-up may be on its way
    assert scene.machine.stop() == 0
    scene.machine.start()
    scene.browser.wait_for("#live", "live")


@pytest.mark.parametrize(("button", "ended_as"), [("pause", "paused"), ("close", "offline")])
def test_the_whole_node_ends_by_a_button(scene: Scene, button: str, ended_as: str) -> None:
    browser = scene.open()
    scene.order()
    browser.click("details:has(#pump-pause) summary")
    browser.click(f"#pump-{button}")
    assert f"{button.title()} the whole node?" in browser.text("#sure")
    browser.click("#sure-yes")
    scene.give_token()
    assert scene.machine.end() == 0
    browser.wait_for("#stale", "Not connected")
    assert f'"state": "{ended_as}"' in scene.machine.log_file.read_text().splitlines()[-1]
    scene.machine.start()
    browser.wait_for("#live", "live")
    browser.wait_for("#states", "Pump online")
    browser.wait_for("#states", "Replication running")


@pytest.mark.soak
def test_any_number_of_tabs_may_be_open(scene: Scene) -> None:
    driver = scene.open().driver
    first = driver.current_window_handle
    try:
        for _ in range(6):  # a browser has six connections to one place
            driver.switch_to.new_window("tab")
            driver.get(f"http://127.0.0.1:{scene.machine.port}/")
            scene.browser.wait_for("#live", "live")
        driver.switch_to.window(first)
        scene.browser.wait_for("#live", "live")
    finally:
        for each in set(driver.window_handles) - {first}:
            driver.switch_to.window(each)
            driver.close()
        driver.switch_to.window(first)


def test_everything_is_reached_by_keyboard_and_has_a_name(scene: Scene) -> None:
    browser = scene.open()
    browser.look()
    wanted = browser.driver.execute_script(
        "return [...document.querySelectorAll('a, button, input, summary, [tabindex=\"0\"]')]"
        ".filter(e => !e.disabled && e.type !== 'radio' && e.checkVisibility()).length"
    )
    script = """
        const e = document.activeElement;
        if (e === document.body) return null;
        e.dataset.seen = "1";
        const name = e.getAttribute("aria-label") ?? e.labels?.[0]?.innerText ?? e.innerText;
        return [name.trim(), getComputedStyle(e).outlineStyle, e.type ?? ""];
    """
    browser.one("body").send_keys(Keys.TAB)
    for _ in range(wanted * 8):  # a date has a stop for each of its parts
        at = browser.driver.execute_script(script)
        if at is None:
            break
        name, outline, kind = at
        assert name, "nameless"
        assert outline != "none" or kind == "radio", f"{name} does not show that it has the focus"
        browser.driver.switch_to.active_element.send_keys(Keys.TAB)
    seen = "return document.querySelectorAll('[data-seen]:not([type=radio])').length"
    reached = browser.driver.execute_script(seen)
    assert reached >= wanted


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (360, "dark")])
def test_it_fits_and_can_be_read(scene: Scene, scheme: str, width: int, tmp_path: Path) -> None:
    browser = scene.open()
    browser.look(width=width, scheme=scheme)
    scene.look_up("newest")
    browser.wait_for("#found", "shop.orders")
    script = browser.driver.execute_script
    assert script("return document.documentElement.scrollWidth") <= width
    assert script("return innerWidth") == width, "nothing has stretched the window"
    weak = [each for each in script(_CONTRASTS) if each["ratio"] < CONTRAST_MIN]
    assert weak == []
    assert browser.shot(tmp_path / f"{scheme}-{width}.png").startswith(b"\x89PNG")
    assert script("return getComputedStyle(document.body).colorScheme") == "light dark"
    ground = script("return getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(244, 246, 248)", "dark": "rgb(13, 17, 23)"}[scheme]
    assert browser.complaints() == []


def test_nothing_is_loaded_from_elsewhere(scene: Scene) -> None:
    browser = scene.open()
    names = browser.driver.execute_script(
        "return performance.getEntriesByType('resource').map(each => new URL(each.name).host)"
    )
    assert set(names) == {f"127.0.0.1:{scene.machine.port}"}
    assert len(browser.driver.find_elements(By.CSS_SELECTOR, "[style], script:not([src])")) <= 6


def test_a_node_that_replicates_nothing_is_shown_as_such(browser: Browser, tmp_path: Path) -> None:
    machine = Appliance(tmp_path)
    machine.configure("[drainer]\nenabled = false\n")
    try:
        machine.start()
        browser.driver.get(f"http://127.0.0.1:{machine.port}/")
        browser.wait_for("#attention", "Replication is turned off")
        assert "Replication off" in browser.text("#states")
        assert "Replication is turned off" in browser.text("#lanes")
        assert not browser.one("#pause").is_enabled()
        assert browser.driver.title.startswith("off: not replicating")
        assert browser.complaints() == []
    finally:
        machine.close()


def test_before_anything_is_applied_no_lag_is_counted_from_1970(
    browser: Browser, tmp_path: Path
) -> None:
    machine, shop = Appliance(tmp_path), Shop(time.time_ns() // 1_000_000)
    machine.configure(f'[syncer]\ndb-type = "mysql"\n[syncer.to]\nport = {free_port()}\n')
    try:
        machine.start()
        send(machine.target, *shop.ddls())
        status = machine.wait(lambda now: now["drainer"]["state"] == "retrying")
        assert status["newest_commit_ts"] > 0
        assert (status["lag_s"], status["drainer"]["applied_ts"]) == (None, 0)
        browser.driver.get(f"http://127.0.0.1:{machine.port}/")
        browser.wait_for("#figures", "nothing is applied yet")
        # while it tries once more, it is not retrying
        browser.wait(lambda: browser.driver.title.startswith("retrying: nothing is applied yet"))
        shown = browser.text("#figures") + browser.text("#lanes") + browser.text("#pictures")
        assert re.search(r"\d{4,} d", shown) is None
        with urllib.request.urlopen(f"http://127.0.0.1:{machine.port}/metrics") as answer:
            said = answer.read().decode()
        assert re.search(r"^binlogd_(drainer_)?lag_seconds ", said, re.MULTILINE) is None
        assert browser.complaints() == []
    finally:
        machine.close()


def test_exports_are_told_while_they_run_and_when_they_are_over(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Appliance(tmp_path)
    machine.configure('[drainer]\nenabled = false\n[export]\ndir = "snapshots"\n')
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\nexec sleep 600\n")  # an export that begins, and then takes time
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    staged = tmp_path / "snapshots" / "staged"
    staged.mkdir(parents=True)
    publish(staged, staged.parent, manifest(7))
    url = f"http://127.0.0.1:{machine.port}"
    try:
        machine.start()
        browser.driver.get(f"{url}/")
        assert "none\nby this process" in browser.wait_for("#figures", "Exports")
        _ask(machine, "/exports", "POST", as_of="7")
        browser.wait_for("#figures", "1 snapshot\nby this process")
        _ask(machine, "/exports", "POST", format="papyrus")
        browser.wait_for("#figures", "1 snapshot\n1 failed")
        running = _ask(machine, "/exports", "POST")["id"]
        _ask(machine, "/exports", "POST", as_of="8")
        browser.wait_for("#figures", f"number {running}\nstarting, 1 export waiting")
        _ask(machine, f"/exports/{running + 1}", "DELETE")
        _ask(machine, f"/exports/{running}", "DELETE")
        browser.wait_for("#figures", "1 snapshot\n1 failed")
        assert browser.complaints() == []
    finally:
        machine.close()


def _ask(machine: Appliance, route: str, method: str, **wish: str) -> Any:
    headers = {"Authorization": f"Bearer {machine.token}"}
    url = f"http://127.0.0.1:{machine.port}{route}"
    request = urllib.request.Request(url, json.dumps(wish).encode(), headers, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def test_answers_have_the_shapes_that_are_described(scene: Scene) -> None:
    document = description()
    for path, method in (
        ("/status", "get"),
        ("/pumps", "get"),
        ("/drainers", "get"),
        ("/commit_ts", "get"),
        ("/skips", "get"),
        ("/transactions", "get"),
    ):
        answers = document["paths"][path][method]["responses"]
        schema = answers["200"]["content"]["application/json"]["schema"]
        checked = {**schema, "components": document["components"]}
        OAS31Validator(checked).validate(_answer(scene, path))


def _answer(scene: Scene, path: str) -> Any:
    request = urllib.request.Request(
        f"http://127.0.0.1:{scene.machine.port}{path}", headers={"Authorization": f"Bearer {TOKEN}"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)
