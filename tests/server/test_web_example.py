"""The web example in a real browser: the result is shown, changes are seen where they happen, and a
connection that is lost loses nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from playwright.sync_api import Page, expect

from support.browser import MILLISECONDS, browser_page
from support.server import ServerProcess

EXAMPLE = Path(__file__).parents[2] / "examples" / "web" / "serve.py"


@contextmanager
def example(server: ServerProcess, *arguments: str, port: int = 0) -> Generator[int]:
    """The example's own server; its port."""
    command = [sys.executable, str(EXAMPLE), "--tidemill", f"127.0.0.1:{server.http_port}"]
    process = subprocess.Popen([*command, "--port", str(port), *arguments], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said.startswith("open http://localhost:"), said
        yield int(said.split()[1].rpartition(":")[2])
    finally:
        process.terminate()
        assert process.wait(MILLISECONDS / 1000) == 0


def row(page: Page, key: Any) -> Any:
    return page.locator(f"tbody tr[data-key='[{key}]']:not(.gone)")


def shows(page: Page, key: Any, *cells: str) -> None:
    expect(row(page, key).locator("td")).to_have_text([str(key), *cells], timeout=MILLISECONDS)


@pytest.mark.timeout(600)
def test_a_live_query_in_a_browser(server: ServerProcess, database: str) -> None:
    dsn = server.sql_dsn.replace("dbname=materialize", f"dbname={database}")
    expect.set_options(timeout=MILLISECONDS)
    with browser_page() as page, psycopg.connect(dsn, autocommit=True) as c:
        c.execute("CREATE TABLE parcels (id int, place text)")
        c.execute("INSERT INTO parcels VALUES (1, 'Accra'), (2, '<b>Bergen</b>')")
        query = ["--query", "SELECT id, place FROM parcels", "--key", "id", "--database", database]
        with example(server, *query) as port:
            page.goto(f"http://localhost:{port}")
            shows(page, 1, "Accra")
            shows(page, 2, "<b>Bergen</b>")
            expect(page.locator("#state")).to_have_attribute("data-state", "live")
            expect(page.locator("#head")).to_contain_text("place")
            # What the snapshot brought is not marked as a change.
            expect(page.locator("tbody tr.new, tbody tr.changed")).to_have_count(0)

            c.execute("UPDATE parcels SET place = 'Cusco' WHERE id = 1")
            shows(page, 1, "Cusco")
            expect(row(page, 1)).to_have_class("changed")
            expect(row(page, 2)).to_have_class("")
            c.execute("INSERT INTO parcels VALUES (3, 'Dhaka')")
            shows(page, 3, "Dhaka")
            expect(row(page, 3)).to_have_class("new")
            c.execute("DELETE FROM parcels WHERE id = 2")
            expect(row(page, 2)).to_have_count(0)
            expect(page.locator("#count")).to_have_text("2")
            if os.environ.get("TIDEMILL_TEST_SCREENSHOT"):
                page.screenshot(path=os.environ["TIDEMILL_TEST_SCREENSHOT"])

        # The example's server is gone; the browser waits for it, and is then told what it missed: changes, so
        # the row that did not change is the same element still.
        expect(page.locator("#state")).to_have_attribute("data-state", "waiting")
        page.evaluate("document.querySelector(\"tr[data-key='[3]']\").dataset.seen = 'before'")
        c.execute("UPDATE parcels SET place = 'Enugu' WHERE id = 1")
        with example(server, *query, port=port):
            shows(page, 1, "Enugu")
            expect(row(page, 1)).to_have_class("changed")
            expect(row(page, 3)).to_have_attribute("data-seen", "before")
            expect(page.locator("#state")).to_have_attribute("data-state", "live")

            c.execute("DROP TABLE parcels")
            expect(page.locator("#error")).to_contain_text("was dropped")
            expect(page.locator("#state")).to_have_attribute("data-state", "ended")


@pytest.mark.timeout(600)
def test_the_parcels_travel_without_a_query(server: ServerProcess) -> None:
    with browser_page() as page, example(server) as port:
        page.goto(f"http://localhost:{port}")
        expect(page.locator("tbody tr.changed").first).to_be_visible(timeout=MILLISECONDS)
        # A page elsewhere may give this machine a name of its own.
        answer = page.request.get(f"http://localhost:{port}/live", headers={"Host": "rebound.example:80"})
        assert answer.status == 403
