"""What Debezium writes: all that is special about its messages, whatever carries them.

`logical_types` names the types that its converters add to Avro, `avro_types` reads them. `avro_changes` and
`json_changes` take `after` and `op` out of a change, `narrow_schema` narrows a reader's schema to them.
`placeholders` knows the values that stand for what PostgreSQL did not send. Called by `decode.avro` for the
types, by `sources.kafka` for the changes and by `envelope` for the placeholders.
"""
