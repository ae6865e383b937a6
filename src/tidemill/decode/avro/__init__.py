"""Avro decoder: schemas (`schema`), schema resolution (`resolve`), and columnar reading (`decoder`).

`formats` opens the decoder; `resolve` calls `parse_schema` and `columns_of` at CREATE.
"""
