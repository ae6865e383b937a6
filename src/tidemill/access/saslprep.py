"""SASLprep (RFC 4013): maps visually equal spellings of a password to one password.

Called by `scram` before a password is hashed. As in PostgreSQL and its clients, a password that the profile
forbids is used as its raw bytes, so it still works.
"""

from __future__ import annotations

import stringprep
import unicodedata
from collections.abc import Callable

_PROHIBITED: tuple[Callable[[str], bool], ...] = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
    stringprep.in_table_a1,
)


def saslprep(password: str) -> bytes:
    """The bytes that are hashed."""
    if password.isascii() and password.isprintable():
        return password.encode()
    prepared = _prepared(password)
    return (password if prepared is None else prepared).encode("utf-8", "surrogatepass")


def _prepared(password: str) -> str | None:
    """None where the profile forbids it."""
    mapped = "".join(
        " " if stringprep.in_table_c12(c) else c for c in password if not stringprep.in_table_b1(c)
    )
    text = unicodedata.normalize("NFKC", mapped)
    if not text or any(table(c) for c in text for table in _PROHIBITED):
        return None
    if any(map(stringprep.in_table_d1, text)):
        # Right-to-left texts begin and end so, and hold nothing that runs from left to right.
        ends = stringprep.in_table_d1(text[0]) and stringprep.in_table_d1(text[-1])
        if not ends or any(map(stringprep.in_table_d2, text)):
            return None
    return text
