"""Every statement that the parser takes is on a page of docs/sql, in the syntax that the page begins with;
every page is in the list, every variable of a session on the page of SET, every parameter on that of ALTER
SYSTEM."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tidemill.engine.session.variables import SESSION_VARIABLES, SYSTEM_PARAMETERS
from tidemill.sql.ast import ObjectKind
from tidemill.sql.parser import dispatch, roles

SQL = Path(__file__).parents[2] / "docs" / "sql"
MANY = ("create", "drop", "alter")
STATEMENTS = sorted(
    {
        *(word.upper() for word in dispatch._STATEMENTS if word not in MANY),  # pyright: ignore[reportPrivateUsage]
        *(f"CREATE {word.upper()}" for word in dispatch._CREATE),  # pyright: ignore[reportPrivateUsage]
        *(f"DROP {word.upper()}" for word in roles.DROP),
        *(f"ALTER {word.upper()}" for word in roles.ALTER),
        *(f"{verb} {kind.value}" for verb in ("ALTER", "DROP") for kind in ObjectKind),
        *("ALTER SYSTEM", "SELECT", "VALUES", "TABLE", "WITH"),
    }
)


def spelled() -> str:
    """The syntax of all pages, with `{ A | B } c` as `A c` and `B c`."""
    lines: list[str] = []
    for page in SQL.glob("*.md"):
        for block in re.findall(r"^```\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
            for line in block.replace("[OR REPLACE] ", "").splitlines():
                found = re.match(r"^(\w*) ?\{ ([A-Z |]+) \}(.*)", line)
                if found is None:
                    lines.append(line)
                else:
                    lines += [f"{found[1]} {word.strip()}{found[3]}".strip() for word in found[2].split("|")]
    return "\n".join(lines)


@pytest.mark.parametrize("statement", STATEMENTS)
def test_it_has_a_page(statement: str) -> None:
    assert re.search(rf"(^|  |^\[|\| ){statement}\b", spelled(), re.MULTILINE), statement


def test_every_page_is_in_the_list() -> None:
    listed = set(re.findall(r"\]\(([\w-]+\.md)\)", (SQL / "README.md").read_text()))
    assert {p.name for p in SQL.glob("*.md")} - {"README.md"} == listed


def test_every_variable_is_on_the_page_of_set() -> None:
    told = re.findall(r"`(\w+)`", (SQL / "set.md").read_text().split("## Variables")[1].split("\n## ")[0])
    assert sorted(set(told) & set(SESSION_VARIABLES)) == sorted(SESSION_VARIABLES)


def test_every_parameter_is_on_the_page_of_alter_system() -> None:
    told = re.findall(r"`(\w+)`", (SQL / "alter-system.md").read_text())
    assert sorted(set(told) & set(SYSTEM_PARAMETERS)) == sorted(SYSTEM_PARAMETERS)
