"""The tick on Spark: the records of a binding are read, converted to updates and committed.

Called by the engine. `unit` is the work of one source for one time. `task` does it, inside a Spark task or in
this process. `runner` sends units to where they run and returns their results. `machine` is one source's
order of steps: bind, read, commit, and redo after a crash. `ticker` moves all sources along the clock.
Promises: no part for a time exists before the time's binding is durable (I1). Each record's rows appear once,
at the first time whose binding covers it. A source that fails or floods delays no other (I5).
"""
