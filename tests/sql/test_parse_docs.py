"""The examples of the SQL pages parse, and none of their statements is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tidemill.sql.parse import parse

PAGES = sorted((Path(__file__).parents[2] / "docs" / "sql").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_examples_parse(page: Path) -> None:
    for block in re.findall(r"```sql\n(.*?)```", page.read_text(), re.DOTALL):
        # The shell's variables.
        assert parse(re.sub(r"(?<!:):[a-z]\w*", "0", block.replace("\\gset\n", ";\n")))


def test_there_are_pages() -> None:
    assert len(PAGES) > 10
