"""The examples of docs/clients, run as they stand against a real server; its port and the database are put in
their place. Those over TLS, with a password, are in `test_tls_clients`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.server import ServerProcess, connected

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [p for p in sorted((ROOT / "docs" / "clients").glob("*.md")) if _BLOCK.search(p.read_text())]


def here(text: str, server: ServerProcess, database: str) -> str:
    text = text.replace("localhost:6875/materialize", f"127.0.0.1:{server.sql_port}/{database}")
    return text.replace(
        "host=localhost port=6875 user=materialize dbname=materialize",
        f"host=127.0.0.1 port={server.sql_port} user=materialize dbname={database}",
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_the_page_does_what_it_says(page: Path, server: ServerProcess, database: str) -> None:
    for block in _BLOCK.findall(page.read_text()):
        script = here(block, server, database)
        assert "6875" not in script
        ran = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=600, check=False
        )
        assert ran.returncode == 0, ran.stderr


def test_a_panel_of_grafana(server: ServerProcess, database: str) -> None:
    """The macro as Grafana writes it."""
    (panel,) = re.findall(
        r"^```sql grafana\n(.*?)^```$",
        (ROOT / "docs" / "clients" / "grafana.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    filtered = panel.replace(
        "$__timeFilter(at)", "at BETWEEN '2026-01-01T10:00:00Z' AND '2026-01-01T11:00:00Z'"
    )
    assert "$" not in filtered
    with connected(server, database) as connection:
        connection.execute("CREATE TABLE orders (id int, at timestamptz)")
        connection.execute(
            "INSERT INTO orders VALUES (1, '2026-01-01 10:00:10+00'), (2, '2026-01-01 10:00:50+00'), "
            "(3, '2026-01-01 10:02:00+00'), (4, '2026-01-02 10:00:00+00')"
        )
        rows = connection.execute(filtered.encode()).fetchall()
    assert [(at.minute, count) for at, count in rows] == [(0, 2), (2, 1)]


def test_there_are_pages() -> None:
    assert {"psycopg", "asyncpg", "sqlalchemy"} <= {p.stem for p in PAGES}
