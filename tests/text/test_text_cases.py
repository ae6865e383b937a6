"""Every file of tests/text/cases, over a real socket, in a database of its own."""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path

import pytest

from support.server import ServerProcess
from support.wire import Wire

from .runner import Runner
from .slt import parse, render

CASES = sorted((Path(__file__).parent / "cases").glob("**/*.slt"))


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)
def test_case(path: Path, server: ServerProcess) -> None:
    text = path.read_text()
    database = "slt_" + re.sub(r"\W", "_", path.stem)
    admin = Wire(server.sql_dsn)
    try:
        made = admin.run(f'CREATE DATABASE "{database}"')
        assert made.failure is None, made.failure
        runner = Runner(lambda role: Wire(f"{server.sql_dsn} user={role} dbname={database}"))
        try:
            got = render(runner.run(parse(text)))
        finally:
            runner.close()
        dropped = admin.run(f'DROP DATABASE "{database}" CASCADE')
        assert dropped.failure is None, dropped.failure
    finally:
        admin.close()
    if os.environ.get("TIDEMILL_REWRITE"):
        path.write_text(got)
        return
    if got != text:
        lines = difflib.unified_diff(text.splitlines(), got.splitlines(), "expected", "got", lineterm="", n=4)
        diff = "\n".join(lines)
        pytest.fail(f"{path.name}: TIDEMILL_REWRITE=1 accepts this\n{diff}", pytrace=False)
