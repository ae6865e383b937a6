"""Debezium messages: everything specific to Debezium, for every transport.

Called by `decode.avro` for the types, by `sources.kafka` for the changes and by `envelope` for the
placeholders. `logical_types` names the types that Debezium's converters add to Avro, and `avro_types` reads
them. `avro_changes` and `json_changes` extract `after` and `op` from a change; `avro_images` and
`json_images` both rows and the source. `json_columns` reads JSON by columns, `json_message` one message.
`positions` has what is special about each connector. `narrow_schema` narrows a reader schema to what is
needed. `placeholders` recognizes the values that replace what PostgreSQL did not send.
"""
