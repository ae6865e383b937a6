"""The literals on the pages of docs/types are read and shown as the pages say; every type has a page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from bind_corpus import DOCS, SESSION, shown_text

from tidemill.errors import UndefinedObject
from tidemill.sql.ast import Query
from tidemill.sql.bind import Relation, bind_query, constant_rows
from tidemill.sql.parse import parse
from tidemill.types.model import Kind, SqlType
from tidemill.types.wire.text import encode_text

PAGES = sorted(p for p in (DOCS / "types").glob("*.md") if p.name != "README.md")
_LITERAL = re.compile(r"^\| `(.*)` \| (NULL|`.*`) \|$", re.MULTILINE)


class NoNames:
    def relation(self, parts: tuple[str, ...], position: int | None) -> Relation:
        raise UndefinedObject(".".join(parts))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_literals(page: Path) -> None:
    section = page.read_text(encoding="utf-8").split("## Literals")[1].split("\n## ")[0]
    found = _LITERAL.findall(section)
    assert found
    for literal, shown in found:
        (parsed,) = parse("SELECT " + literal.replace("\\|", "|"))
        assert isinstance(parsed.statement, Query)
        bound = bind_query(parsed.statement.tree, NoNames(), session=SESSION)
        rows = constant_rows(bound)
        assert rows is not None, literal
        text = encode_text(rows.column(0), bound.columns[0].type)[0].as_py()
        assert shown_text(shown) == (None if text is None else text.decode()), literal


def test_every_type_has_a_page_and_the_index_every_page() -> None:
    pages = "\n".join(p.read_text(encoding="utf-8") for p in PAGES)
    index = (DOCS / "types" / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"\(([a-z_]+)\.md\)", index) and all(f"({p.name})" in index for p in PAGES)
    inner = {Kind.UNKNOWN, Kind.VOID, Kind.QCHAR, Kind.REGPROC, Kind.REGTYPE}
    without = {*inner, Kind.RECORD, Kind.ARRAY, Kind.LIST, Kind.MAP}
    for kind in set(Kind) - without:
        assert f"| `{SqlType(kind)}" in pages or kind is Kind.CHAR, kind
