"""Avro messages to columns: schemas, their resolution, and reading by columns.

`AvroDecoder` is opened by `formats`; `resolve`'s users at CREATE need `parse_schema` and `columns_of`.
"""

from tidemill.decode.avro.columns import columns_of
from tidemill.decode.avro.decoder import AvroDecoder
from tidemill.decode.avro.schema import SchemaError, parse_schema

__all__ = ["AvroDecoder", "SchemaError", "columns_of", "parse_schema"]
