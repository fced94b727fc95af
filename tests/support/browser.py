"""A headless Chromium: one for all tests of the page, with what it complained about."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from tests.support.tried import tried

WAIT_S = 120.0


class BrowserMissing(Exception):
    """No Chromium here."""


class Browser:
    """What a person has: a window of some size, light or dark, a keyboard and a pointer."""

    def __init__(self) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = _program("chromium")
        for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
            options.add_argument(word)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        service = webdriver.ChromeService(_program("chromedriver"))
        self.driver = webdriver.Chrome(options=options, service=service)

    def close(self) -> None:
        self.driver.quit()

    def look(self, *, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        """A window of this size, for a system that is light or dark."""
        tried("Chromium", str(self.driver.capabilities["browserVersion"]))
        self.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia",
            {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
        )
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def all(self, css: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, css)

    def one(self, css: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, css)

    def text(self, css: str) -> str:
        """Of the first, as it is shown."""
        found: str = self.one(css).text
        return found

    def click(self, css: str) -> None:
        """In the middle of the window, where nothing lies above it; once more where the page put
        another in its place meanwhile."""

        def clicked(_: object) -> bool:
            element = self.one(css)
            self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
            element.click()
            return True

        again = [StaleElementReferenceException]
        WebDriverWait(self.driver, WAIT_S, 0.1, ignored_exceptions=again).until(clicked)

    def wait(self, condition: Any) -> Any:
        """Until it is true; fails after some time."""
        return WebDriverWait(self.driver, WAIT_S, 0.1).until(lambda _: condition())

    def wait_for(self, css: str, words: str) -> str:
        """Until an element says these words; all that it says then."""

        def said() -> str:
            script = "return document.querySelector(arguments[0])?.innerText ?? ''"
            text: str = self.driver.execute_script(script, css)
            return text if words in text else ""

        found: str = self.wait(said)
        return found

    def complaints(self) -> list[str]:
        """Errors and refusals of the browser since the last time, those of the network left out."""
        logged = self.driver.get_log("browser")  # type: ignore[no-untyped-call]  # selenium says so
        return [each["message"] for each in logged if each["source"] != "network"]

    def shot(self, path: Path) -> bytes:
        """What is seen now, as PNG."""
        picture: bytes = self.driver.get_screenshot_as_png()
        path.write_bytes(picture)
        return picture


def _program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise BrowserMissing(f"{name} is not installed: `make system` does that")
    return path
