"""Where changes come from: one file per upstream, all behind one contract.

`contract` says what a source owes; `offsets` is the upstream's own gauge of progress; `definition` turns what
the catalog keeps of a source into the source itself. Called by `reclock` and `ingest`, and by the engine when
a source is made. Promises: a source's rows are a function of its definition and of a range of offsets alone,
so that whoever reads a range again, on any machine, gets the same rows.
"""
