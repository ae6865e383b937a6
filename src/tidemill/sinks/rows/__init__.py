"""Encoding of rows as Kafka messages, whole columns at a time: keys and values, in Avro and in JSON.

Called by the keyed writer. A column becomes an Arrow column with the bytes of each value, and a row is their
concatenation: no Python runs per row. Messages are what other programs expect of upserts and of Debezium.
"""
