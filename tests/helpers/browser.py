"""A real browser without a window, for the tests of pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1200,900",
)  # fmt: skip

needs_browser = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None, reason="needs Chromium and its driver (Debian: chromium-driver)"
)


@contextmanager
def browser(profile: Path) -> Iterator[Any]:
    """Selenium's driver, with an empty profile; at the end the pages must have logged no error."""
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for word in (*QUIET, f"--user-data-dir={profile}"):
        options.add_argument(word)
    driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    try:
        yield driver
        logged = [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
        assert not logged
    finally:
        driver.quit()


def wait_until(driver: Any, condition: Any, seconds: float = 20) -> Any:
    """What `condition(driver)` returns, once that is true."""
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(driver, seconds, poll_frequency=0.05).until(condition)
