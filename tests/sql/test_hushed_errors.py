"""No error quotes what may be a password or a secret, whichever way a text comes in."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tidemill.errors import TidemillError
from tidemill.sql.parse import parse
from tidemill.sql.relation import parse_relation

TEXTS = [
    "CREATE SECRET s AS 'hush",
    "CREATE SECRET s AS 'it's hush",
    "CREATE ROLE r PASSWORD 'it's hush",
    "SELECT 1; ALTER ROLE r PASSWORD 'x' 'hush'",
    "ALTER SECRET s RENAME TO 'hush'",
]


@pytest.mark.parametrize("door", [parse, parse_relation])
@pytest.mark.parametrize("text", TEXTS)
def test_hushed(door: Callable[[str], object], text: str) -> None:
    with pytest.raises(TidemillError) as caught:
        door(text)
    assert "hush" not in f"{caught.value.primary} {caught.value.detail} {caught.value.hint}"


def test_other_statements_are_quoted_as_in_postgresql() -> None:
    with pytest.raises(TidemillError, match='unterminated quoted string at or near "\'a"'):
        parse("SELECT 'a")
