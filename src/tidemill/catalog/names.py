"""Identifiers and their display: the rules of PostgreSQL, with the limit raised to 255 bytes."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from tidemill.errors import InvalidValue, SyntaxError_

# PostgreSQL has 63; long names are common in generated schemas, and 255 still fits a row of every client's
# tree view.
MAX_IDENTIFIER_BYTES = 255


def check_identifier(name: str) -> str:
    """`name` if something may be called so."""
    if not name:
        raise SyntaxError_("zero-length delimited identifier")
    if "\0" in name:
        raise InvalidValue('invalid byte sequence for encoding "UTF8": 0x00', sqlstate="22021")
    try:
        size = len(name.encode())
    except UnicodeEncodeError as e:  # a lone surrogate
        raise InvalidValue("identifier is no valid Unicode text", sqlstate="22021") from e
    if size > MAX_IDENTIFIER_BYTES:
        raise SyntaxError_(
            f"identifier is too long ({size} bytes, the limit is {MAX_IDENTIFIER_BYTES})",
            detail=f"It starts with {name[:40]!r}.",
            sqlstate="42622",
        )
    return name


def dotted(parts: Sequence[str]) -> str:
    """A name as PostgreSQL's messages show it inside quotes: the parts joined by dots, as they are."""
    return ".".join(parts)


def similar(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate that `name` was probably meant to be."""
    matches = difflib.get_close_matches(name.lower(), sorted(candidates), n=1, cutoff=0.75)
    return matches[0] if matches else None
