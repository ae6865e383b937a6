"""Identifiers and literals: folding, limits, quoting.

The scanner folds and checks every identifier with `fold` and `check_length`. The renderer, the catalog and
error messages write them with `quote_ident` and `quote_literal`. For every NUL-free string `s` within the
limit, scanning `quote_ident(s)` gives the identifier `s`, and scanning `quote_literal(s)` gives the string
`s`.
"""

from __future__ import annotations

import re

from tidemill.errors import TidemillError

# PostgreSQL truncates at 63 bytes (NAMEDATALEN - 1). Truncated names can collide, so ours raises an error.
# 255 is the limit of file systems for one path component, and column names are repeated in Parquet footers.
MAX_IDENTIFIER_BYTES = 255


def words(text: str) -> frozenset[str]:
    """The blank-separated words of `text`, for the word lists of this package."""
    return frozenset(text.split())


_ASCII_LOWER = {c: c + 32 for c in range(ord("A"), ord("Z") + 1)}
_PLAIN = re.compile(r"[a-z_][a-z0-9_$]*")

# PostgreSQL's reserved key words: never an identifier unless quoted or a label after AS.
RESERVED = words(
    """
    all analyse analyze and any array as asc asymmetric both case cast check collate column constraint
    create current_catalog current_date current_role current_time current_timestamp current_user default
    deferrable desc distinct do else end except false fetch for foreign from grant group having in
    initially intersect into lateral leading limit localtime localtimestamp not null offset on only or
    order placing primary references returning select session_user some symmetric system_user table then
    to trailing true union unique user using variadic when where window with
    """
)

# Reserved, but allowed as a function or type name.
RESERVED_FUNCTION_OR_TYPE = words(
    """
    authorization binary collation concurrently cross current_schema freeze full ilike inner is isnull
    join left like natural notnull outer overlaps right similar tablesample verbose
    """
)

# Words that may name a column or table but not a function, because a call of them has special syntax.
NOT_A_FUNCTION = words(
    """
    between bigint bit boolean char character coalesce dec decimal exists extract float greatest
    grouping inout int integer interval json json_array json_arrayagg json_exists json_object
    json_objectagg json_query json_scalar json_serialize json_table json_value least merge_action national
    nchar none normalize nullif numeric out overlay position precision real row setof smallint substring
    time timestamp treat trim values varchar xmlattributes xmlconcat xmlelement xmlexists xmlforest
    xmlnamespaces xmlparse xmlpi xmlroot xmlserialize xmltable
    """
)

# Words that are a label only after AS.
AS_LABEL = words(
    """
    array as char character create day except fetch filter for from grant group having hour intersect into
    isnull limit minute month notnull offset on order over overlaps precision returning second to union
    varying where window with within without year
    """
)

# Unquoted, these would be read as grammar in some places where a name is allowed: the renderer quotes them.
# `list` and `map` are ours (types), the rest PostgreSQL's.
_QUOTE_ALWAYS = (
    RESERVED | RESERVED_FUNCTION_OR_TYPE | NOT_A_FUNCTION | frozenset({"list", "map", "of", "over", "filter"})
)


class NameTooLong(TidemillError):
    """An identifier above `MAX_IDENTIFIER_BYTES`."""

    sqlstate = "42622"


def fold(word: str) -> str:
    """An unquoted identifier folded as in PostgreSQL: ASCII letters to lower case, all others unchanged."""
    return word.translate(_ASCII_LOWER)


def check_length(name: str, position: int | None = None) -> str:
    """`name` itself; raises `NameTooLong` above the limit. `position` is a 0-based offset in the text."""
    # A character takes at most four bytes: short names need no encoding to be measured.
    if len(name) * 4 > MAX_IDENTIFIER_BYTES:
        size = len(name.encode("utf-8", "surrogatepass"))
        if size > MAX_IDENTIFIER_BYTES:
            raise NameTooLong(
                f'identifier "{name[:40]}..." is too long',
                detail=f"It has {size} bytes; the limit is {MAX_IDENTIFIER_BYTES}.",
                position=None if position is None else position + 1,
            )
    return name


def needs_quotes(name: str) -> bool:
    """Whether `name` needs quotes to read back unchanged wherever an identifier may appear."""
    return _PLAIN.fullmatch(name) is None or name in _QUOTE_ALWAYS


def quote_ident(name: str) -> str:
    """`name` as SQL text, quoted only where it must be."""
    if not needs_quotes(name):
        return name
    return '"' + name.replace('"', '""') + '"'


def quote_name(*parts: str) -> str:
    """A dotted name as SQL text."""
    return ".".join(quote_ident(p) for p in parts)


def quote_literal(value: str) -> str:
    """A string literal that does not depend on `standard_conforming_strings`."""
    if "\\" in value:
        return "E'" + value.replace("\\", "\\\\").replace("'", "''") + "'"
    return "'" + value.replace("'", "''") + "'"
