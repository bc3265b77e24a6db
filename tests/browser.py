"""A real browser for the pages: Debian's chromium, headless, driven by selenium; where it is missing, tests say so."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1400,1000",
)


@dataclass(frozen=True)
class Browser:
    """One window; what a test asks of it."""

    driver: Any

    def open(self, path: Path, fragment: str = "") -> None:
        """Load a file and clear the earlier log."""
        self.visit(path.as_uri(), fragment)

    def visit(self, address: str, fragment: str = "") -> None:
        """Load an address and clear the earlier log."""
        self.driver.get("about:blank")
        self.driver.get_log("performance")
        self.driver.get_log("browser")
        self.driver.get(address + fragment)
        self._wait_for(address)

    def _wait_for(self, address: str) -> None:
        """On a busy machine the driver can come back while the page is still being read, its script not yet run."""
        self.wait_until(f"return document.readyState === 'complete' && location.href.startsWith({json.dumps(address)})")

    def wait_until(self, script: str) -> None:
        """Come back when a piece of JavaScript says so."""
        deadline = time.monotonic() + 60
        while not self.run(script):
            assert time.monotonic() < deadline, f"not within a minute: {script}"
            time.sleep(0.02)

    def run(self, script: str) -> Any:
        """What a piece of JavaScript returns."""
        return self.driver.execute_script(script)

    @contextmanager
    def of_width(self, width: int) -> Iterator[None]:
        """A window so many pixels wide, as a telephone has them, or a desk."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        yield
        self.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})

    def wait_for_frames(self, count: int) -> None:
        """Come back when the page has been drawn so many times more."""
        self.driver.execute_async_script(
            "let [left, done] = arguments; const next = () => left-- ? requestAnimationFrame(next) : done(); next()",
            count,
        )

    def text(self, selector: str) -> str:
        """The text of the first element."""
        return str(self.run(f"return document.querySelector({json.dumps(selector)}).textContent"))

    def count(self, selector: str) -> int:
        """How many elements there are."""
        return int(self.run(f"return document.querySelectorAll({json.dumps(selector)}).length"))

    def click(self, selector: str) -> None:
        """Click the first element, as a person would."""
        self.driver.find_element("css selector", selector).click()

    def complaints(self) -> list[str]:
        """What the page logged."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requested(self) -> list[str]:
        """Return every address that the page requested."""
        events = (json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance"))
        return [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]


def _do_without(reason: str) -> NoReturn:
    """Skip, except where these tests are meant to run: CI sets TILEWAVE_REQUIRE_BROWSER."""
    if os.environ.get("TILEWAVE_REQUIRE_BROWSER"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@contextmanager
def chromium() -> Iterator[Browser]:
    """Open a new window, or skip the test."""
    program, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or chromedriver is None:
        _do_without("no chromium and chromedriver here: apt install chromium chromium-driver")
    try:
        from selenium import webdriver
    except ImportError:
        _do_without("selenium is not installed: pip install -e .[dev]")
    service = webdriver.ChromeService(executable_path=chromedriver)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = program
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        driver = webdriver.Chrome(options=options, service=service)
        yield Browser(driver)
        driver.quit()
