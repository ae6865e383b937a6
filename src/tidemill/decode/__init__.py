"""Decoders: turn bytes into columns (Avro, JSON, text, bytes, CSV, regular expressions, Protobuf).

Called by sources whose upstream carries messages. The package also contains the client of the schema
registry. Decoders work on whole columns of messages. An undecodable message becomes an error in its row and
never an exception.
"""
