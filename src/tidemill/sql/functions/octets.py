"""Functions on bytea."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from tidemill.sql.functions.rowwise import by_row, row_function
from tidemill.sql.functions.signature import Builder, function, not_yet
from tidemill.sql.functions.tree import Tree, call, string
from tidemill.sql.scalar import octets
from tidemill.types.model import BYTEA, INT4, INT8, NAME, TEXT


def _encode(build: Builder) -> Builder:
    """Spark's own function if the format is a constant that Spark supports."""

    def made(args: Sequence[Tree]) -> Tree:
        form = str(args[1].this).lower() if isinstance(args[1], exp.Literal) else ""
        if form == "hex":
            return call("lower", call("hex", args[0]))
        if form == "base64":
            # PostgreSQL breaks lines after 76 characters with a newline, Spark with CR LF.
            return call("replace", call("base64", args[0]), string("\r\n"), string("\n"))
        return build(args)

    return made


def _install() -> None:
    function(
        "encode", (BYTEA, TEXT), TEXT, _encode(row_function("encode", (BYTEA, TEXT), TEXT, octets.encode))
    )
    by_row("decode", (TEXT, TEXT), BYTEA, octets.decode)
    by_row("get_byte", (BYTEA, INT4), INT4, octets.get_byte)
    by_row("set_byte", (BYTEA, INT4, INT4), BYTEA, octets.set_byte)
    by_row("get_bit", (BYTEA, INT8), INT4, octets.get_bit)
    by_row("set_bit", (BYTEA, INT8, INT4), BYTEA, octets.set_bit)
    by_row("bit_count", (BYTEA,), INT8, octets.bit_count)
    by_row("overlay", (BYTEA, BYTEA, INT4), BYTEA, octets.overlay)
    by_row("overlay", (BYTEA, BYTEA, INT4, INT4), BYTEA, octets.overlay)
    by_row("btrim", (BYTEA, BYTEA), BYTEA, octets.trim)
    by_row("ltrim", (BYTEA, BYTEA), BYTEA, octets.trim_left)
    by_row("rtrim", (BYTEA, BYTEA), BYTEA, octets.trim_right)
    by_row("reverse", (BYTEA,), BYTEA, octets.reverse)
    by_row("crc32", (BYTEA,), INT8, octets.crc32)
    by_row("crc32c", (BYTEA,), INT8, octets.crc32c)
    by_row("convert_from", (BYTEA, NAME), TEXT, octets.convert_from)
    by_row("convert_to", (TEXT, NAME), BYTEA, octets.convert_to)
    by_row("length", (BYTEA, NAME), INT4, octets.length_in)
    not_yet("convert")


_install()
