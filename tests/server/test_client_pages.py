"""The Python examples of docs/clients, run as they stand against a real server; its port and the
database are put in their place."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.server import ServerProcess

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


def test_there_are_pages() -> None:
    assert {"psycopg", "asyncpg", "sqlalchemy"} <= {p.stem for p in PAGES}
