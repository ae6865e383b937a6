"""Sinks: collections written out, every change at its time, for whoever reads them elsewhere.

`machine` writes one sink (`cdcv2.writer` says what, and in which order), `kafka_target` and `files_target`
are where to, `service` runs all sinks of a server, `feed` is what they need of the engine. Called by the
engine.
Promises: a reader of the stream gets the collection's history exactly once, however often the server is
killed or the place is away; what a sink has still to write is not forgotten; a sink that fails or is slow
delays nobody else.
"""
