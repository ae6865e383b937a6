"""Avro messages to columns: schemas (`schema`), their resolution, and reading by columns (`decoder`).

The decoder is opened by `formats`; `resolve` calls `parse_schema` and `columns_of` at CREATE.
"""
