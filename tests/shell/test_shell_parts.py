"""The shell's smaller parts, each by itself; and that help and manual know every command."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import pytest

from tidemill.cli.shell.arguments import arguments
from tidemill.cli.shell.commands import REGISTRY
from tidemill.cli.shell.connecting import ServerAddress
from tidemill.cli.shell.context import candidates
from tidemill.cli.shell.help import COMMANDS, statements, syntax
from tidemill.cli.shell.history import MOST_BYTES, SafeHistory, has_secret, history_path
from tidemill.cli.shell.names import Names
from tidemill.cli.shell.patterns import Pattern, parse
from tidemill.cli.shell.prompt import is_complete
from tidemill.cli.shell.shell import duration
from tidemill.cli.shell.splitter import Splitter
from tidemill.cli.shell.variables import ShellVariables, identifier, literal
from tidemill.cli.sql import in_order
from tidemill.errors import TidemillError

ROOT = Path(__file__).resolve().parents[2]
NAMES = Names(
    visible=frozenset({"orders", "Big One", "items"}),
    relations=frozenset(
        {("public", "orders"), ("public", "Big One"), ("public", "items"), ("sales", "orders")}
    ),
    columns={
        ("public", "orders"): ["id", "price", "Unit"],
        ("sales", "orders"): ["region"],
        ("public", "items"): ["item"],
    },
    functions=("lower", "length"),
    schemas=("public", "sales"),
    settings=("search_path", "statement_timeout"),
    databases=("materialize",),
    roles=("anna",),
)


def offered(text: str) -> list[str]:
    return [candidate.text for candidate in candidates(text, NAMES)]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("SELECT * FROM ord", ["orders"]),
        ("select * from o", ["orders"]),
        ("SELECT * FROM orders, it", ["items"]),
        ("SELECT * FROM sales.", ["orders"]),
        ('SELECT * FROM "Big', ['"Big One"']),
        ("SELECT * FROM Big", ['"Big One"']),
        ("SUBSCRIBE TO it", ["items"]),
        ("SELECT * FROM orders AS o WHERE o.p", ["price"]),
        ("SELECT * FROM orders o JOIN items i ON i.", ["item"]),
        ("SELECT * FROM sales.orders WHERE re", ["region"]),
        ("SELECT * FROM orders WHERE U", ['"Unit"']),
        ("SET st", ["statement_timeout"]),
        ("SHOW sea", ["search_path"]),
        ("SEL", ["SELECT"]),
        ("sel", ["select"]),
        ("SELECT low", ["lower"]),
        ("SELECT 1; UPDATE ite", ["items"]),
        ("ALTER TABLE orders OWNER TO an", ["anna"]),
        ("SELECT 'ord", []),
        ("SELECT 1 -- ord", []),
    ],
)
def test_completion(text: str, first: list[str]) -> None:
    assert offered(text)[: len(first) or None] == first


def test_completion_is_bounded() -> None:
    many = Names(visible=frozenset(f"t{i}" for i in range(5000)))
    assert len(candidates("SELECT * FROM ", many)) == 500
    assert candidates("x" * 1_000_000, many) == []


@pytest.mark.parametrize(
    ("rest", "words"),
    [
        ("", []),
        ("a  b", ["a", "b"]),
        (r"'a b' c", ["a b", "c"]),
        (r"'it''s\n\x41\101'", ["it's\nAA"]),
        ('"a b" x"y z"', ["a b", "xy z"]),
        (":n :'n' :other", ["7", "'7'", ":other"]),
        ("`echo hi`", ["<echo hi>"]),
    ],
)
def test_arguments(rest: str, words: list[str]) -> None:
    known = ShellVariables()
    known.set("n", "7")
    assert arguments(rest, known.lookup, lambda command: f"<{command}>") == words


def test_arguments_keep_the_quotes_of_a_pattern() -> None:
    assert arguments('"A b".x', ShellVariables().lookup, keep_quotes=True) == ['"A b".x']
    with pytest.raises(TidemillError, match="unterminated"):
        arguments("'a", ShellVariables().lookup)


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("", Pattern(None, None)),
        ("*", Pattern(None, None)),
        ("Orders", Pattern(None, "^(orders)$")),
        ("o?d*", Pattern(None, "^(o.d.*)$")),
        ("sales.*", Pattern("^(sales)$", None)),
        ("*.t", Pattern("^(.*)$", "^(t)$")),
        ('"A.B*"', Pattern(None, r"^(A\.B\*)$")),
        ("a$b", Pattern(None, r"^(a\$b)$")),
    ],
)
def test_patterns(text: str, pattern: Pattern) -> None:
    assert parse(text) == pattern


def test_variables_that_steer() -> None:
    known = ShellVariables()
    known.set("ON_ERROR_STOP", "1")
    assert known.is_on("ON_ERROR_STOP")
    for name, value in [("ON_ERROR_STOP", "maybe"), ("ECHO", "all"), ("a b", "x"), ("", "x")]:
        with pytest.raises(TidemillError):
            known.set(name, value)
    assert [literal("it's"), literal("a\\b"), identifier("a_b"), identifier("A b")] == [
        "'it''s'",
        " E'a\\\\b'",
        "a_b",
        '"A b"',
    ]


def test_what_enter_sends() -> None:
    def complete(text: str) -> bool:
        return is_complete(Splitter(), text)

    assert complete("") and complete("SELECT 1;") and complete("\\d") and complete("SELECT 1 \\g")
    assert not complete("SELECT 1") and not complete("SELECT 'a;") and not complete("SELECT 1; SELECT 2")


def test_the_history_is_private_and_without_passwords(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TIDEMILL_HISTORY", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    path = history_path()
    assert path == tmp_path / "tidemill" / "sql_history"
    history = SafeHistory(path)
    for line in ["SELECT 1;", "ALTER ROLE a PASSWORD 'canary';", "SELECT\n2;"]:
        history.store_string(line)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert "canary" not in path.read_text()
    assert list(SafeHistory(path).load_history_strings()) == ["SELECT\n2;", "SELECT 1;"]


@pytest.mark.parametrize(
    "text",
    [
        "CREATE SECRET s AS 'x'",
        "create role a login password 'x'",
        "\\c postgresql://anna:x@host/db",
        "\\c 'host=a password=x'",
        "CREATE CONNECTION k TO KAFKA (SASL PASSWORD = 'x')",
    ],
)
def test_what_is_not_kept(text: str) -> None:
    assert has_secret(text)
    assert not has_secret("SELECT * FROM mz_secrets")
    assert not has_secret("SELECT 'a' FROM orders WHERE id = 3")


def test_a_history_that_is_no_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "null"
    os.mkfifo(path, 0o644)
    history = SafeHistory(path)
    history.store_string("SELECT 1;")
    assert history.problem is not None and "is no file" in history.problem
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert list(history.load_history_strings()) == []


def test_the_history_stays_small_and_a_bad_file_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "h"
    entry = "\n# 2026-01-01 00:00:00\n+SELECT 'filler';\n"
    path.write_text(entry * (MOST_BYTES // len(entry) + 1) + "\n# 2026-01-02 00:00:00\n+SELECT 'last';\n")
    history = SafeHistory(path)
    assert path.stat().st_size <= MOST_BYTES // 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert next(iter(history.load_history_strings())) == "SELECT 'last';"
    blocked = tmp_path / "file"
    blocked.write_text("")
    history = SafeHistory(blocked / "sub" / "h")
    history.store_string("SELECT 1;")
    assert history.problem is not None


def test_moving_to_another_server_leaves_the_password_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGHOST", "PGPORT", "PGUSER", "PGDATABASE"):
        monkeypatch.delenv(name, raising=False)
    place = ServerAddress(url="postgresql://anna:secret@here:7000/db", password="typed")
    assert "secret" in place.moved(["other"]).conninfo() or "typed" in place.moved(["other"]).conninfo()
    moved = place.moved(["-", "-", "elsewhere"]).conninfo()
    assert "host=elsewhere" in moved and "secret" not in moved and "typed" not in moved
    assert "dbname=db" in moved and "port=7000" in moved
    assert place.moved(["postgresql://b@c/d"]) == ServerAddress(url="postgresql://b@c/d")


def test_the_order_of_c_and_f() -> None:
    argv = ["tidemill", "sql", "-c", "a", "--file=b", "-f", "c", "--command", "d"]
    assert in_order(argv, ["a", "d"], ["b", "c"]) == (("c", "a"), ("f", "b"), ("f", "c"), ("c", "d"))
    assert in_order([], ["a"], ["b"]) == (("c", "a"), ("f", "b"))


def test_durations() -> None:
    assert [duration(0.0123), duration(61.5), duration(3723)] == [
        "12.300 ms",
        "61500.000 ms (01:01.500)",
        "3723000.000 ms (01:02:03.000)",
    ]


def test_help_is_read_from_the_manual() -> None:
    assert {"SELECT", "SUBSCRIBE", "CREATE TABLE", "INSERT"} <= set(statements())
    assert "SUBSCRIBE [TO]" in syntax("subscribe")
    assert "REVOKE {" in syntax("revoke")
    assert "No help" in syntax("nonsense")


def test_every_command_is_in_help_and_manual() -> None:
    page = (ROOT / "docs" / "shell.md").read_text()
    # Long forms that only save a reader of scripts a question.
    aliases = {
        "quit",
        "help",
        "list",
        "connect",
        "include",
        "include_relative",
        "out",
        "write",
        "edit",
        "print",
        "reset",
    }
    for name in sorted(set(REGISTRY) - aliases):
        told = re.compile(rf"\\{re.escape(name)}(?![a-z])")
        assert told.search(COMMANDS), f"\\{name} is not in \\?"
        assert told.search(page), f"\\{name} is not in docs/shell.md"
