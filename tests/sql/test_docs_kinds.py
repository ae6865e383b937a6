"""Every kind of source, envelope and sink that the parser has a line for is on the page of its statement."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from tidemill.sql.parser.envelopes import ENVELOPES
from tidemill.sql.parser.sink_targets import SINK_TARGETS
from tidemill.sql.parser.upstreams import UPSTREAMS

DOCS = Path(__file__).parents[2] / "docs" / "sql"


@pytest.mark.parametrize(
    ("kinds", "pages"),
    [
        (UPSTREAMS, "create-source*.md"),
        (ENVELOPES, "create-source*.md"),
        (SINK_TARGETS, "create-sink.md"),
    ],
)
def test_each_kind_has_its_words(kinds: Iterable[tuple[str, ...]], pages: str) -> None:
    told = "\n".join(page.read_text() for page in DOCS.glob(pages))
    names = [" ".join(words).upper() for words in kinds]
    assert [name for name in names if not re.search(rf"\b{name}\b", told)] == []
