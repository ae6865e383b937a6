"""Bytes to columns: Avro, JSON, text, bytes, CSV, regular expressions, Protobuf; and the schema registry.

Called by sources whose upstream carries messages. Everything works on whole columns of messages; a message
that cannot be decoded becomes an error in its row and never an exception.
"""
