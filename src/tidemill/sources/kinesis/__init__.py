"""Kinesis source: the records of a stream, shard by shard.

`source` reports the position of the stream and plans ranges; `receiver` is the one reader of its shards,
whose records `spool` keeps on their way to the tasks; `reader` is sent to the tasks, and reads from the spool
or, after a restart, from the stream. `client` speaks with the service.
"""
