"""Sinks: write the updates of a collection, each at its time, to external readers.

Called by the engine. `machine` writes one sink through its writer: `cdcv2_writer` writes a history to a
target (`kafka_target`, `files_target`), `keyed_writer` the rows of keys in Kafka transactions. `service` runs
all sinks of a server, and `feed` is the interface to the engine.

Promises: a reader of the stream gets the history of the collection exactly once, however often the server is
killed or the target is unavailable. History that a sink still has to write is retained. A sink that fails or
is slow does not delay others.
"""
