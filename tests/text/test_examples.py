"""The files of examples/ and the demo, run as their pages tell."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.server import ServerProcess

from .docs import Psql, split

ROOT = Path(__file__).resolve().parents[2]


def test_as_of_py(server: ServerProcess) -> None:
    run = subprocess.run(
        [sys.executable, "examples/as_of.py"],
        cwd=ROOT,
        env=os.environ | {"PGDSN": server.sql_dsn},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == [
        "now:  [('apple', 7), ('pear', 5)]",
        "then: [('apple', 10), ('pear', 5), ('plum', 7)]",
    ]


@pytest.mark.parametrize("name", ["transfers.sql", "as_of.py", "http.sh", "web/serve.py"])
def test_what_an_example_makes_and_drops_is_its_own(name: str) -> None:
    """Not what somebody made who followed README.md or the documentation."""
    text = (ROOT / "examples" / name).read_text()
    changed = r"(?:CREATE|DROP) (?:TABLE|VIEW)(?: IF (?:NOT )?EXISTS)? (\w+)"
    named = re.findall(changed, text)
    assert named and all(n.startswith("example_") for n in named), named


def test_transfers_sql(server: ServerProcess) -> None:
    from support.wire import Wire

    connection = Wire(server.sql_dsn)
    try:
        psql = Psql(connection)
        shown: list[str] = []
        for statement in split((ROOT / "examples" / "transfers.sql").read_text()):
            text, failed = psql.type(statement)
            assert not failed, f"{statement}\n{text}"
            if "balance" in text:
                shown.append(text)
    finally:
        connection.close()
    assert len(shown) == 3
    assert shown[0] == shown[2] != shown[1]


def test_storage_py(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "examples/storage.py", str(tmp_path / "data")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == [
        "rows: 1000",
        "records read: 1000",
        "people: ['anna', 'bruno']",
        "the insert is durable: True",
        "the past may go: True",
    ]


@pytest.mark.skipif(shutil.which("curl") is None, reason="the example uses curl")
def test_http_sh(server: ServerProcess) -> None:
    run = subprocess.run(
        ["sh", "examples/http.sh", server.http_url], cwd=ROOT, capture_output=True, text=True, timeout=400
    )
    assert run.returncode == 0, run.stderr
    assert '"rows": [["/docs",null],["/home",12]]' in run.stdout
    assert '"error"' not in run.stdout


@pytest.mark.server
def test_demo_is_ended_by_ctrl_c_at_once() -> None:
    demo = subprocess.Popen(
        [sys.executable, "-m", "tidemill.cli", "demo"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert demo.stdout is not None
    said = ""
    while "Ctrl-C ends the demo" not in said:
        line = demo.stdout.readline()
        assert line, said
        said += line
    demo.send_signal(signal.SIGINT)
    rest, _ = demo.communicate(timeout=180)
    assert demo.returncode == 0, said + rest
    assert "Nothing was read yet." in rest or "had not changed" in " ".join(rest.split())
    folder = re.search(r"Starting a server in (\S+)", said)
    assert folder is not None and not Path(folder[1]).exists()
