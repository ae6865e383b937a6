"""The tick on Spark: what a binding covers is read, made into updates and committed.

`unit` is what one source has to do for one time; `task` does it, inside a Spark task or in this process;
`runner` carries units to where they run and brings what became of them back; `machine` is one source's order
of steps (bind, read, commit, and after a crash redo); `ticker` moves all sources along the clock. Called by
the engine. Promises: no part for a time exists before the time's binding is durable (I1); each record's rows
are there once, at the first time whose binding covers it; a source that fails or floods delays no other (I5).
"""
