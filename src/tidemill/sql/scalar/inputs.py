"""pg_input_is_valid: whether a text is a value of a type, without the error of a cast."""

from __future__ import annotations

from tidemill.errors import InvalidValue
from tidemill.types import parse_type
from tidemill.types.wire.value import parse_literal


def is_valid(text: str, type_name: str) -> bool:
    """As the type's input function reads it, modifiers included. Raises if there is no such type."""
    t = parse_type(type_name)
    try:
        parse_literal(text, t)
    except InvalidValue:
        return False
    return True
