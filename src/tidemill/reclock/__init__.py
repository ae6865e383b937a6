"""Reclocking: upstream frontiers bound to our times.

`remap` is a source's durable collection of bindings; `boundaries` says at which times sources tick;
`progress` is what people see of it. Called by `ingest` and the engine. Promises: a binding never changes,
bindings are monotone, and a record belongs to the first time whose binding covers it.
"""
