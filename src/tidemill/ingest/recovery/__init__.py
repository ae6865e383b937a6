"""CDCv2 on Spark: the history back from its statements, tick by tick.

Called by the tick for relations of ENVELOPE MATERIALIZE, and through `batches` for micro-batches of anybody's
messages. A tick's steps: read, drop what is not beyond the reported frontier, and part by the hash of (data,
time) (`partition`); drop repetitions, of this tick and of the stash, and count (`deduplicate.look`); weigh
statements and counts, and move the frontier (`verdict`, for the whole unit at once); release what it passed,
stash the rest (`deduplicate.release`). What must be remembered is in two shards beside the relation's
(`stream`).

Promises: each update once, at the first time whose records make it known; never a wrong one; the same
records again change nothing; a crash at any moment loses and repeats nothing.
"""
