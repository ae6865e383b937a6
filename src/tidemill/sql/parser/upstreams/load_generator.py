"""FROM LOAD GENERATOR: rows that Tidemill generates."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.sql.ast.base import offset_field
from tidemill.sql.ast.sources import Option, OptionValue, Upstream
from tidemill.sql.names import quote_literal
from tidemill.sql.parser.cursor import TokenCursor
from tidemill.sql.parser.options import options
from tidemill.sql.tokens import TokenKind


@dataclass(frozen=True, slots=True)
class LoadGenerator(Upstream):
    """FROM LOAD GENERATOR kind [(options)]."""

    kind: str  # upper case, one blank between its words; the planner checks it
    options: tuple[Option, ...] = ()
    offset: int = offset_field()

    def to_sql(self) -> str:
        shown = ", ".join(map(_option, self.options))
        return f"LOAD GENERATOR {self.kind}{f' ({shown})' if shown else ''}"


def _option(option: Option) -> str:
    return option.name if option.value is None else f"{option.name} {_value(option.value)}"


def _value(value: OptionValue) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return quote_literal(value) if isinstance(value, str) else str(value)


# Generators whose name has two words; every other is one word.
_TWO_WORDS = (("key", "value"),)


def parse_load_generator(cursor: TokenCursor) -> LoadGenerator:
    """After LOAD GENERATOR: kind [(options)]. The planner checks the kind."""
    offset = cursor.offset
    for words in _TWO_WORDS:
        if cursor.accept(*words):
            return LoadGenerator(" ".join(words).upper(), options(cursor), offset)
    if cursor.token.kind is not TokenKind.WORD:
        raise cursor.error()
    return LoadGenerator(cursor.word().upper(), options(cursor), offset)
