"""The examples of docs/recipes.md run over a real server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from client_world import url

import tidemill
from support.server import ServerProcess, connected
from tidemill.dev.process import pick_ports

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "recipes.md").read_text()
SECONDS = 300.0


def example(name: str, target: str = "") -> str:
    (code,) = re.findall(rf"^```python {name}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return code.replace("postgresql://materialize@localhost:6875/materialize", target)


@pytest.fixture
def target(server: ServerProcess, database: str) -> Iterator[str]:
    with connected(server, database) as c:
        c.execute("CREATE TABLE paid (account text, amount int)")
        c.execute("INSERT INTO paid VALUES ('anna', 5), ('anna', 6)")
    yield url(server).rpartition("/")[0] + f"/{database}"


@pytest.fixture
def served(target: str) -> Iterator[str]:
    """The application, where it answers."""
    names: dict[str, Any] = {}
    exec(example("fastapi", target), names)
    (port,) = pick_ports(1)
    serving = uvicorn.Server(uvicorn.Config(names["app"], port=port, log_level="error"))
    thread = threading.Thread(target=serving.run)
    thread.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        serving.should_exit = True
        thread.join(SECONDS)


def test_fastapi(served: str, target: str) -> None:
    transport = httpx.HTTPTransport(retries=20)
    with httpx.Client(base_url=served, transport=transport, timeout=SECONDS) as http:
        first = http.get("/balances/anna").json()
        assert (first["account"], int(first["balance"])) == ("anna", 11)
        assert http.get("/balances/nobody").status_code == 404
        with http.stream("GET", "/changes") as answer, tidemill.connect(target) as db:
            lines = (line for line in answer.iter_lines() if line.startswith("data: "))
            assert len(json.loads(next(lines)[6:])) == 2
            db.execute("INSERT INTO paid VALUES ('bruno', 3)")
            (row,) = json.loads(next(lines)[6:])
            assert (row["mz_diff"], row["account"], row["amount"]) == (1, "bruno", 3)
            # The table is at that time soon, and never shows half of it.
            while (found := http.get("/balances/bruno")).status_code == 404:
                pass
            assert int(found.json()["balance"]) == 3


def test_pandas(target: str) -> None:
    pytest.importorskip("pandas")
    done = subprocess.run(
        [sys.executable, "-c", example("pandas", target)],
        capture_output=True, text=True, timeout=SECONDS, env=dict(os.environ), check=False,
    )  # fmt: skip
    assert done.stdout == "{'anna': 7, 'bruno': 2}\n", done.stderr


def test_streamlit_is_python() -> None:
    compile(example("streamlit"), "streamlit", "exec")
