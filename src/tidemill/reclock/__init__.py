"""Reclocking: binds upstream frontiers to times of our timeline.

Called by `ingest` and the engine. `remap` is the durable collection of a source's bindings, `boundaries`
defines the times of ticks, and `progress` reads bindings for the progress relation. Promises: a binding never
changes, bindings are monotone, and a record belongs to the first time whose binding covers it.
"""
