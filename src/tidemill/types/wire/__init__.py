"""SQL values on the PostgreSQL wire: OIDs and modifiers, text and binary format, columns and single values.

Called by `server` (rows, parameters, COPY) and `sql` (literals). Columns are in the storage form of
`types.arrow`. On the wire they are binary arrays, one value per row, null for NULL. Invalid client input
raises `InvalidValue` with PostgreSQL's text and SQLSTATE (`InvalidField` where the row is known).
"""

from tidemill.types.wire.binary import decode_binary, encode_binary
from tidemill.types.wire.columns import InvalidField
from tidemill.types.wire.few import FEW, few_from_binary, few_from_text, few_to_binary, few_to_text, utf8
from tidemill.types.wire.oids import oid, type_of_oid, typlen, typmod
from tidemill.types.wire.text import decode_text, encode_text
from tidemill.types.wire.value import format_value, parse_literal

__all__ = [
    "FEW",
    "InvalidField",
    "decode_binary",
    "decode_text",
    "encode_binary",
    "encode_text",
    "few_from_binary",
    "few_from_text",
    "few_to_binary",
    "few_to_text",
    "format_value",
    "oid",
    "parse_literal",
    "type_of_oid",
    "typlen",
    "typmod",
    "utf8",
]
