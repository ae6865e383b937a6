"""The COPY formats text, csv and binary: convert between Arrow batches and bytes.

Called by `pgwire` in worker threads. Promises: output and input match PostgreSQL's formats byte for byte.
Input may be cut anywhere. Work is by column; a slow path handles rare cases. An error names the line and
the column, and no row after it is decoded.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tidemill.engine.api import CopyOptions
from tidemill.errors import Unsupported
from tidemill.server.copy.binary import BinaryDecoder, BinaryEncoder
from tidemill.server.copy.csv import CsvDecoder, CsvEncoder
from tidemill.server.copy.formats import CopyDecoder, CopyEncoder
from tidemill.server.copy.recode import Recoded, Recoding
from tidemill.server.copy.text import TextDecoder, TextEncoder
from tidemill.server.copy.values import CopyValues
from tidemill.types.model import Column

__all__ = ["CopyDecoder", "CopyEncoder", "copy_decoder", "copy_encoder"]


def copy_encoder(
    columns: Sequence[Column], options: CopyOptions, *, timezone: str = "UTC", begun: bool = False
) -> CopyEncoder:
    """`begun`: the rows continue a stream whose header was already sent."""
    if options.format == "binary":
        return BinaryEncoder(columns, begun=begun)
    lines: CopyEncoder = TextEncoder(columns, options, timezone)
    if options.format == "csv":
        lines = CsvEncoder(columns, options, timezone)
    return lines if options.encoding == "utf-8" else Recoding(lines, options.encoding)


def copy_decoder(
    columns: Sequence[Column],
    options: CopyOptions,
    *,
    relation: str = "",
    timezone: str = "UTC",
    defaults: Sequence[pa.Scalar | None] = (),
) -> CopyDecoder:
    """`relation` is the table's name, for errors; `defaults` as in `api.CopyIn`."""
    if not columns:
        raise Unsupported("COPY FROM into a table without columns is not supported")
    values = CopyValues(columns, relation, timezone, defaults)
    if options.format == "binary":
        return BinaryDecoder(values)
    lines = CsvDecoder(values, options) if options.format == "csv" else TextDecoder(values, options)
    return lines if options.encoding == "utf-8" else Recoded(lines, options.encoding)
