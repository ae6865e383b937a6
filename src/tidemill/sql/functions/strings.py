"""More text functions: those that Spark lacks or that give other results there."""

from __future__ import annotations

from tidemill.sql.functions.rowwise import by_row, row_function
from tidemill.sql.functions.signature import function, not_yet
from tidemill.sql.scalar import inputs, strings
from tidemill.types.model import BOOL, INT4, INT8, TEXT, array


def _install() -> None:
    by_row("initcap", (TEXT,), TEXT, strings.initcap)
    by_row("overlay", (TEXT, TEXT, INT4), TEXT, strings.overlay)
    by_row("overlay", (TEXT, TEXT, INT4, INT4), TEXT, strings.overlay)
    by_row("quote_literal", (TEXT,), TEXT, strings.quote_literal)
    by_row("quote_ident", (TEXT,), TEXT, strings.quote_identifier)
    nullable = row_function("quote_nullable", (TEXT,), TEXT, strings.quote_nullable, nulls=True)
    function("quote_nullable", (TEXT,), TEXT, nullable)
    by_row("to_bin", (INT4,), TEXT, lambda v: strings.to_base(v, 2, 32))
    by_row("to_bin", (INT8,), TEXT, lambda v: strings.to_base(v, 2, 64))
    by_row("to_oct", (INT4,), TEXT, lambda v: strings.to_base(v, 8, 32))
    by_row("to_oct", (INT8,), TEXT, lambda v: strings.to_base(v, 8, 64))
    by_row("normalize", (TEXT,), TEXT, strings.normalize)
    by_row("normalize", (TEXT, TEXT), TEXT, strings.normalize)
    by_row("unistr", (TEXT,), TEXT, strings.unistr)
    by_row("parse_ident", (TEXT,), array(TEXT), strings.parse_ident)
    by_row("parse_ident", (TEXT, BOOL), array(TEXT), strings.parse_ident)
    by_row("pg_input_is_valid", (TEXT, TEXT), BOOL, inputs.is_valid)
    by_row("chr", (INT4,), TEXT, strings.character)
    not_yet("to_ascii casefold unicode_assigned string_to_table")


# format(): the binder turns its arguments into an array of texts.
format_call = row_function("format", (TEXT, array(TEXT)), TEXT, strings.format_text)

_install()
