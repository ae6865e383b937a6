"""CDCv2 on Spark: the history of a collection, recovered from its statements, tick by tick.

Called by the tick for relations of ENVELOPE MATERIALIZE, and through `batches` for micro-batches of any
program's messages. The steps of a tick:

1. Read, drop what is not beyond the reported frontier, and partition by the hash of (data, time)
   (`partition`).
2. Drop repetitions, of this tick and of the stash, and count (`deduplicate.look`).
3. Compare statements and counts, and advance the frontier (`verdict`, for the whole unit at once).
4. Release the updates before the frontier and stash the rest (`deduplicate.release`).

The state between ticks is in two more shards of the relation (`stream`).

Promises: each update once, at the first time whose records make it known; never a wrong one. The same records
again change nothing. A crash at any moment loses and repeats nothing.
"""
