"""The machine's Chromium, driven by playwright. Nothing is downloaded: `TIDEMILL_TEST_CHROMIUM` names the
program, or it is found on the PATH (Debian: `apt-get install chromium`). Tests that need it are skipped, with
this said, where there is none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
# For whatever a page should come to show; machines are busy.
MILLISECONDS = 120_000


def chromium() -> str | None:
    named = os.environ.get("TIDEMILL_TEST_CHROMIUM")
    return named or next((found for name in NAMES if (found := shutil.which(name))), None)


@contextmanager
def browser_page() -> Generator[Page]:
    """A page of a browser of its own. What goes wrong in its scripts is an error of the test."""
    program = chromium()
    if program is None:
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        # Its own sandbox needs rights that a container, and root, do not have.
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"], timeout=MILLISECONDS
        )
        try:
            page = browser.new_page()
            page.set_default_timeout(MILLISECONDS)
            failures: list[str] = []
            page.on("pageerror", lambda error: failures.append(str(error)))
            yield page
            assert not failures
        finally:
            browser.close()
