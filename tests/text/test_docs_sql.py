"""Every SQL example of README.md and docs/, typed into a real server; what the page shows must be what
comes."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from support.server import ServerProcess
from support.wire import Wire

from .docs import Psql, aligned, examples, matches, split, unhurried

SECONDS = 120.0
ROOT = Path(__file__).resolve().parents[2]
PAGES = [p for p in sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]) if examples(p.read_text())]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_page(page: Path, server: ServerProcess) -> None:
    text = page.read_text()
    database = "docs_" + re.sub(r"\W", "_", str(page.relative_to(ROOT)))
    admin = Wire(server.sql_dsn)
    try:
        assert admin.run(f'CREATE DATABASE "{database}"').failure is None
        connection = Wire(f"{server.sql_dsn} dbname={database}")
        try:
            text = type_page(text, Psql(connection), page, Path(server.data_dir).parent / "files")
        finally:
            connection.close()
        assert admin.run(f'DROP DATABASE "{database}" CASCADE').failure is None
    finally:
        admin.close()
    if os.environ.get("TIDEMILL_REWRITE"):
        page.write_text(text)


def type_page(text: str, psql: Psql, page: Path, files: Path) -> str:
    """The page with what was shown; raises where it differs, unless it is being rewritten."""
    moved = 0
    for example in examples(text):
        if example.file is not None:
            write(files / example.file, example.text, appended=example.appended)
            continue
        got, failed = "", False
        for statement in example.statements:
            assert not failed, f"{page.name}:{example.line}: {got}"
            got, failed = psql.type(statement)
        where = f"{page.name}:{example.line}: {example.statements[-1]}"
        if example.shown is None:
            assert not failed, f"{where}\n{got}"
        elif os.environ.get("TIDEMILL_REWRITE") and not matches(example.shown, got):
            start, end = example.start + moved, example.end + moved
            got = unhurried(got)
            text = f"{text[:start]}{got}\n{text[end:]}"
            moved += len(got) + 1 - (example.end - example.start)
        else:
            got = settled(psql, example.statements[-1], example.shown, got)
            assert matches(example.shown, got), f"{where}\nshows\n{example.shown}\nbut it is\n{got}"
    return text


def write(path: Path, text: str, *, appended: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a" if appended else "w") as file:
        file.write(text)


def settled(psql: Psql, statement: str, shown: str, got: str) -> str:
    """What a query shows once sources have come to where the page has them: on a busy machine a moment after
    the page is typed."""
    deadline = time.monotonic() + SECONDS
    while statement.startswith("SELECT") and not matches(shown, got) and time.monotonic() < deadline:
        time.sleep(0.5)
        got, _ = psql.type(statement)
    return got


def test_examples_are_found_with_their_results() -> None:
    page = """Text
```sql
-- a comment
CREATE TABLE t (a int);  -- another
SELECT a
FROM t;
```

```
 a
---
(0 rows)
```
```sql no-test
DROP EVERYTHING;
```
```sql
SELECT mz_now() AS t \\gset
```
```file >> docs/a.txt
one
```
"""
    first, second, third = examples(page)
    assert first.statements == ["CREATE TABLE t (a int);", "SELECT a\nFROM t;"]
    assert first.shown == " a\n---\n(0 rows)"
    assert page[first.start : first.end] == first.shown + "\n"
    assert (second.statements, second.shown) == (["SELECT mz_now() AS t \\gset"], None)
    assert (third.file, third.text, third.appended) == ("docs/a.txt", "one\n", True)


def test_a_statement_without_its_end_is_told() -> None:
    with pytest.raises(ValueError, match="without its end"):
        split("SELECT 1\n")


def test_results_look_as_psql_shows_them() -> None:
    # Taken from psql 18 itself.
    names, oids = ["id", "name", "long name"], [23, 25, 1700]
    wanted = """ id | name  | long name
----+-------+-----------
  1 | apple |      1.50
 20 |       |       200
(2 rows)"""
    assert aligned(names, [["1", "apple", "1.50"], ["20", None, "200"]], oids) == wanted
    assert aligned(["a"], [["1"]], [23]) == " a\n---\n 1\n(1 row)"


def test_dots_stand_for_anything() -> None:
    assert matches("a ... c", "a b\nb c")
    assert not matches("a ... c", "a b")
    assert matches("x  \ny\n", "x\ny")


def test_notices_of_waiting_may_come_or_not() -> None:
    got = 'NOTICE:  waiting for "s" to be complete at 7\n count\n-------\n     1\n(1 row)'
    assert matches(" count\n-------\n     1\n(1 row)", got)
    assert matches('NOTICE:  waiting for "s" ...\n count\n-------\n     1\n(1 row)', got)
    assert not matches(" count\n-------\n     2\n(1 row)", got)
    assert not matches("done", "NOTICE:  something else\ndone")
