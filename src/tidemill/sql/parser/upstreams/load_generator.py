"""FROM LOAD GENERATOR: rows that are made here."""

from __future__ import annotations

from tidemill.sql.ast import LoadGenerator
from tidemill.sql.parser.cursor import Cursor
from tidemill.sql.parser.options import options
from tidemill.sql.tokens import Kind

# Generators whose name has two words; every other is one word.
_TWO_WORDS = (("key", "value"),)


def load_generator(cursor: Cursor) -> LoadGenerator:
    """After LOAD GENERATOR: kind [(options)]. Which kinds there are, the planner knows."""
    offset = cursor.offset
    for words in _TWO_WORDS:
        if cursor.accept(*words):
            return LoadGenerator(" ".join(words).upper(), options(cursor), offset)
    if cursor.token.kind is not Kind.WORD:
        raise cursor.error()
    return LoadGenerator(cursor.word().upper(), options(cursor), offset)
