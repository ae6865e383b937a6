"""The console with 200 objects: how soon a page shows them, and what open and closed pages cost."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import psycopg
from playwright.sync_api import Page

from bench.busy import core_seconds
from bench.report import Figure, ms
from support.browser import browser_page
from support.server import ServerProcess

TABLES = 100
# Panes of watched queries beside each other.
WATCHED = 4
# Pages of objects that are open at once, in tabs that all count as visible: two live charts on each.
TABS = 10
_PAINT = (
    """() => performance.getEntriesByType('paint').find(e => e.name === 'first-contentful-paint').startTime"""
)


def measure(*, quick: bool = False) -> list[Figure]:
    seconds = 5.0 if quick else 30.0
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as folder:
        server = ServerProcess(Path(folder) / "data")
        try:
            server.start(wait_ready=True)
            with psycopg.connect(server.sql_dsn, autocommit=True) as c:
                for n in range(TABLES):
                    c.execute(f"CREATE TABLE t{n} (id int, amount int)".encode())
                    c.execute(f"CREATE VIEW v{n} AS SELECT id FROM t{n}".encode())
            return _measure(server, seconds)
        finally:
            server.close()


def _measure(server: ServerProcess, seconds: float) -> list[Figure]:
    without = _share(server, seconds)
    paints: list[float] = []
    shown: list[float] = []
    with browser_page() as page:
        for _ in range(5):
            began = time.perf_counter()
            page.goto(server.http_url)
            page.wait_for_selector("svg .node >> nth=199")
            shown.append(time.perf_counter() - began)
            paints.append(page.evaluate(_PAINT) / 1000)
        overview = _share(server, seconds)
        watched = _watched(server, page, seconds)
        tabs = _tabs(server, page, seconds)
    closed = _share(server, seconds)
    return [
        Figure("console, 200 objects: first paint", ms(min(paints)), "<= 1 s", min(paints) <= 1),
        Figure("... the graph of all", ms(min(shown)), "", None),
        Figure("... the server without a page", of_a_core(without), "", None),
        Figure(
            "... with the overview open",
            of_a_core(overview),
            "<= 5% more",
            overview - without <= 0.05,
        ),
        Figure(f"... with {WATCHED} live charts", of_a_core(watched), "", None),
        Figure(
            f"... with {TABS} pages of objects, {2 * TABS} live charts, for each page",
            of_a_core((tabs - without) / TABS),
            "<= 5%",
            (tabs - without) / TABS <= 0.05,
        ),
        Figure("... after it was closed", of_a_core(closed), "as without", None),
    ]


def _watched(server: ServerProcess, page: Page, seconds: float) -> float:
    page.goto(f"{server.http_url}/#/query")
    for n in range(WATCHED):
        if n:
            page.get_by_role("button", name="Add a pane").click()
        pane = page.get_by_role("region", name=f"Query {n + 1}", exact=True)
        pane.get_by_label("SQL", exact=True).fill(f"SELECT id, amount FROM t{n}")
        pane.get_by_role("button", name="Watch").click()
        pane.get_by_role("region", name="Live result").wait_for()
    return _share(server, seconds)


def _tabs(server: ServerProcess, page: Page, seconds: float) -> float:
    """The share with all tabs together."""
    with psycopg.connect(server.sql_dsn, autocommit=True) as c:
        found = c.execute("SELECT id FROM mz_tables WHERE id LIKE 'u%' ORDER BY id").fetchmany(TABS)
    browser = page.context.browser
    assert browser is not None
    for tab, (object_id,) in zip([page, *(browser.new_page() for _ in found[1:])], found, strict=True):
        tab.goto(f"{server.http_url}/#/object/{object_id}")
        tab.wait_for_selector(".uplot >> nth=1")
    return _share(server, seconds)


def _share(server: ServerProcess, seconds: float) -> float:
    """The server's share of a core."""
    before = core_seconds(server.pid)
    time.sleep(seconds)
    return (core_seconds(server.pid) - before) / seconds


def of_a_core(share: float) -> str:
    return f"{share:.1%} of a core"
