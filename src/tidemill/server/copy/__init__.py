"""The formats of COPY: text, csv and binary, between Arrow batches and bytes.

Called by `pgwire` in worker threads. Promises: PostgreSQL's formats to the byte; input may be cut anywhere;
work is by column, with a careful path for what is rare; an error names the line and the column, and nothing
after it is decoded.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.engine.api import CopyOptions
from tidemill.errors import Unsupported
from tidemill.server.copy.binary import BinaryDecoder, BinaryEncoder
from tidemill.server.copy.csv import CsvDecoder, CsvEncoder
from tidemill.server.copy.formats import CopyDecoder, CopyEncoder
from tidemill.server.copy.text import TextDecoder, TextEncoder
from tidemill.server.copy.values import Values
from tidemill.types.model import Column

__all__ = ["CopyDecoder", "CopyEncoder", "copy_decoder", "copy_encoder"]


def copy_encoder(
    columns: Sequence[Column], options: CopyOptions, *, timezone: str = "UTC", begun: bool = False
) -> CopyEncoder:
    """`begun`: for rows behind the first, of which others have seen to the beginning."""
    if options.format == "binary":
        return BinaryEncoder(columns, begun=begun)
    if options.format == "csv":
        return CsvEncoder(columns, options, timezone)
    return TextEncoder(columns, options, timezone)


def copy_decoder(
    columns: Sequence[Column], options: CopyOptions, *, relation: str = "", timezone: str = "UTC"
) -> CopyDecoder:
    """`relation` is the table's name, for errors."""
    if not columns:
        raise Unsupported("COPY FROM into a table without columns is not supported")
    values = Values(columns, relation, timezone)
    if options.format == "binary":
        return BinaryDecoder(values)
    if options.format == "csv":
        return CsvDecoder(values, options)
    return TextDecoder(values, options)
