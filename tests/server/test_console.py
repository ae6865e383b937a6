"""The console in a real browser, over a real server with a source that runs: each page shows what there is,
nothing is asked of another machine, and axe finds nothing that keeps people out."""

from __future__ import annotations

import csv
import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from support.browser import MILLISECONDS, browser_page
from support.server import ServerProcess

SETUP = """
CREATE SOURCE {0} FROM LOAD GENERATOR COUNTER (TICK INTERVAL '100ms');
CREATE TABLE {0}_notes (id int, body text);
INSERT INTO {0}_notes VALUES (1, 'one'), (2, NULL), (3, '<img src=x onerror=alert(1)>');
CREATE VIEW {0}_late AS SELECT * FROM {0}_notes WHERE id > 1;
CREATE MATERIALIZED VIEW {0}_sizes AS SELECT count(*) AS n FROM {0}_notes;
CREATE SUBSCRIPTION {0}_reader FOR {0}_notes ENVELOPE UPSERT (KEY (id)) WITH (SHARES = 2);
"""
# Objects of the default database, whose names no other test has.
NAME = "seen_in_console"


@pytest.fixture(scope="module")
def relations(server: ServerProcess) -> Generator[ServerProcess]:
    with psycopg.connect(server.sql_dsn, autocommit=True) as c:
        for statement in SETUP.format(NAME).strip().split(";\n"):
            c.execute(statement.encode())
        try:
            yield server
        finally:
            c.execute(f"DROP SOURCE IF EXISTS {NAME} CASCADE".encode())
            c.execute(f"DROP TABLE IF EXISTS {NAME}_notes CASCADE".encode())


@contextmanager
def console(server: ServerProcess) -> Generator[Page]:
    """A page at the console. Whatever it asks, it asks its own server."""
    expect.set_options(timeout=MILLISECONDS)
    with browser_page() as page:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(server.http_url)
        yield page
        assert asked and all(url.startswith((server.http_url, "blob:")) for url in asked)


def open_page(page: Page, server: ServerProcess, path: str) -> None:
    page.goto(f"{server.http_url}/#/{path}")


def object_id(server: ServerProcess, name: str) -> str:
    with psycopg.connect(server.sql_dsn, autocommit=True) as c:
        row = c.execute("SELECT id FROM mz_objects WHERE name = %s", (name,)).fetchone()
    assert row is not None
    return row[0]


def accessible(page: Page) -> None:
    found = Axe().run(page).response["violations"]
    assert [(v["id"], [n["html"] for n in v["nodes"]]) for v in found] == []


@pytest.mark.timeout(900)
def test_the_overview_shows_every_object_and_what_it_needs(relations: ServerProcess) -> None:
    with console(relations) as page:
        for name in (NAME, f"{NAME}_notes", f"{NAME}_late", f"{NAME}_sizes"):
            expect(page.get_by_role("link", name=name, exact=True)).to_be_visible()
        row = page.get_by_role("row").filter(has=page.get_by_role("link", name=NAME, exact=True))
        expect(row).to_contain_text("running")
        # It makes ten rows a second.
        expect(row).to_contain_text(re.compile(r"[1-9][0-9.,]*/s"))
        accessible(page)
        page.get_by_label("Find").fill(f"{NAME}_")
        expect(page.get_by_role("link", name=NAME, exact=True)).to_have_count(0)
        # The path to a view leads from its table.
        node = page.get_by_role("link", name=re.compile(f"^view {NAME}_late"))
        node.focus()
        expect(page.locator("svg .node.critical")).to_have_count(2)
        node.press("Enter")
        expect(page.get_by_role("heading", name=f"{NAME}_late", exact=True)).to_be_visible()
        expect(page.locator("pre")).to_contain_text("CREATE VIEW")


@pytest.mark.timeout(900)
def test_a_durable_subscription_shows_its_readers_and_what_is_kept(relations: ServerProcess) -> None:
    name = f"{NAME}_reader"
    with console(relations) as page:
        node = page.get_by_role("link", name=re.compile(f"^subscription {name}, waiting for a reader"))
        expect(node).to_be_visible()
        node.focus()
        # It is drawn behind what it reads.
        expect(page.locator("svg .edge.critical")).to_have_count(1)
        node.press("Enter")
        expect(page.get_by_role("heading", name=name, exact=True)).to_be_visible()
        rows = page.get_by_role("region", name="Readers").locator("tbody tr")
        expect(rows).to_have_count(2)


@pytest.mark.timeout(900)
def test_a_source_has_its_positions_and_a_time_of_it_opens_what_was_there(relations: ServerProcess) -> None:
    with console(relations) as page:
        open_page(page, relations, f"object/{object_id(relations, NAME)}")
        expect(page.get_by_role("heading", name=NAME, exact=True)).to_be_visible()
        partitions = page.get_by_role("region", name="Partitions")
        expect(partitions.locator("tbody tr td").nth(1)).to_have_text(re.compile(r"[1-9][0-9,]*"))
        bindings = page.get_by_role("region", name="Bindings").locator("tbody tr")
        expect(bindings.nth(2)).to_be_visible()
        expect(page.locator(".uplot")).to_have_count(2)
        accessible(page)
        position = int(bindings.nth(2).locator("td").nth(2).inner_text().replace(",", ""))
        time = bindings.nth(2).locator("a")
        at = re.search(r"at=(\d+)", time.get_attribute("href") or "")
        assert at is not None
        query = quote(f"SELECT count(*) AS n FROM {NAME}")
        open_page(page, relations, f"query?sql={query}&at={at[1]}")
        expect(page.get_by_role("region", name="Result").locator("tbody td")).to_have_text(str(position))


@pytest.mark.timeout(900)
def test_a_query_runs_is_read_only_at_first_and_can_be_kept_as_csv(
    relations: ServerProcess, tmp_path: Path
) -> None:
    with console(relations) as page:
        open_page(page, relations, "query")
        text = page.get_by_label("SQL", exact=True)
        text.fill(f"SELECT id, body FROM {NAME}_notes ORDER BY id;")
        text.press("Control+Enter")
        cells = page.get_by_role("region", name="Result").locator("tbody td")
        # What a relation holds is shown, and is never a part of the page.
        expect(cells).to_have_text(["1", "one", "2", "NULL", "3", "<img src=x onerror=alert(1)>"])
        accessible(page)
        with page.expect_download() as download:
            page.get_by_role("button", name="CSV").click()
        download.value.save_as(tmp_path / "rows.csv")
        with (tmp_path / "rows.csv").open(newline="") as file:
            assert list(csv.reader(file)) == [
                ["id", "body"],
                ["1", "one"],
                ["2", ""],
                ["3", "<img src=x onerror=alert(1)>"],
            ]
        text.fill(f"INSERT INTO {NAME}_notes VALUES (9, 'never')")
        page.get_by_role("button", name="Run").click()
        expect(page.get_by_role("alert")).to_contain_text("read-only transaction")
        text.fill("SELECT nothing")
        page.get_by_role("button", name="Run").click()
        expect(page.get_by_role("alert")).to_contain_text('column "nothing" does not exist')
        # Names complete; earlier statements are there.
        text.fill("")
        text.press_sequentially(f"TABLE {NAME}_no")
        expect(page.get_by_role("option", name=f"{NAME}_notes", exact=True)).to_be_visible()
        text.press("Tab")
        expect(text).to_have_value(f"TABLE {NAME}_notes")
        page.get_by_role("button", name="Explain").click()
        expect(page.locator(".tree, details[open]").first).to_be_visible()
        accessible(page)
        page.get_by_label("Earlier").select_option(index=1)
        expect(text).to_have_value("SELECT nothing")


@pytest.mark.timeout(900)
def test_a_watched_query_changes_while_one_looks(relations: ServerProcess) -> None:
    with console(relations) as page, psycopg.connect(relations.sql_dsn, autocommit=True) as c:
        c.execute(f"CREATE TABLE {NAME}_parcels (id int, place text, weight int)".encode())
        try:
            c.execute(f"INSERT INTO {NAME}_parcels VALUES (1, 'Accra', 5), (2, 'Bergen', 7)".encode())
            open_page(page, relations, "query")
            page.get_by_label("SQL", exact=True).fill(f"SELECT id, place, weight FROM {NAME}_parcels")
            page.get_by_label("key of Watch").fill("id")
            page.get_by_role("button", name="Watch").click()
            cells = page.get_by_role("region", name="Live result").locator("tbody td")
            expect(cells).to_have_text(["1", "Accra", "5", "2", "Bergen", "7"])
            c.execute(f"UPDATE {NAME}_parcels SET place = 'Bodø' WHERE id = 2".encode())
            expect(cells).to_have_text(["1", "Accra", "5", "2", "Bodø", "7"])
            c.execute(f"DELETE FROM {NAME}_parcels WHERE id = 1".encode())
            expect(cells).to_have_text(["2", "Bodø", "7"])
            # Another pane beside it follows another relation.
            page.get_by_role("button", name="Add a pane").click()
            second = page.get_by_role("region", name="Query 2")
            second.get_by_label("SQL", exact=True).fill(f"SELECT n FROM {NAME}_sizes")
            second.get_by_role("button", name="Watch").click()
            expect(second.get_by_role("region", name="Live result").locator("tbody td")).to_have_text(["3"])
            expect(cells.first).to_have_text("2")
            c.execute(f"DROP TABLE {NAME}_parcels".encode())
            expect(page.get_by_role("alert")).to_contain_text("was dropped")
        finally:
            c.execute(f"DROP TABLE IF EXISTS {NAME}_parcels".encode())


@pytest.mark.timeout(900)
def test_storage_and_sessions(relations: ServerProcess) -> None:
    name = "to be cancelled"
    with console(relations) as page, psycopg.connect(relations.sql_dsn, application_name=name) as c:
        open_page(page, relations, "storage")
        row = page.get_by_role("row").filter(has=page.get_by_role("link", name=f"{NAME}_notes", exact=True))
        expect(row.locator("td").nth(3)).to_have_text("3")
        accessible(page)
        open_page(page, relations, "sessions")
        row = page.get_by_role("row").filter(has_text=name)
        expect(row).to_contain_text("idle")
        accessible(page)
        row.get_by_role("button", name=re.compile("^End session")).click()
        expect(page.get_by_role("row").filter(has_text=name)).to_have_count(0)
        with pytest.raises(psycopg.errors.AdminShutdown):
            c.execute("SELECT 1")


@pytest.mark.timeout(900)
def test_a_narrow_dark_page_fits_and_a_server_that_fails_is_told(relations: ServerProcess) -> None:
    with console(relations) as page:
        page.set_viewport_size({"width": 360, "height": 740})
        page.emulate_media(color_scheme="dark")
        page.reload()
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        objects = [f"object/{object_id(relations, name)}" for name in (NAME, f"{NAME}_reader")]
        for path in ("overview", *objects, "query", "storage", "sessions"):
            open_page(page, relations, path)
            expect(page.get_by_role("heading", level=1)).to_be_visible()
            width = page.evaluate("document.documentElement.scrollWidth")
            assert width <= 360, (path, width)
            accessible(page)
        open_page(page, relations, "overview")
        expect(page.get_by_role("link", name=NAME, exact=True)).to_be_visible()
        # The server's answers end; when they come again, so do the figures.
        page.route("**/api/sql", lambda route: route.abort())
        expect(page.get_by_text("No live figures")).to_be_visible()
        expect(page.get_by_role("link", name=NAME, exact=True)).to_be_visible()
        page.unroute("**/api/sql")
        expect(page.get_by_text("No live figures")).to_have_count(0)


@pytest.mark.timeout(900)
def test_a_hidden_page_asks_for_nothing(relations: ServerProcess) -> None:
    with console(relations) as page:
        expect(page.get_by_role("link", name=NAME, exact=True)).to_be_visible()
        hide = """(hidden) => {
          Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
          document.dispatchEvent(new Event("visibilitychange"));
        }"""
        page.evaluate(hide, True)
        page.wait_for_timeout(3000)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.wait_for_timeout(6000)
        assert asked == []
        page.evaluate(hide, False)
        with page.expect_request("**/api/sql"):
            pass
