"""Sources: one module per upstream, all with one contract.

`contract` defines the duties of a source. `offsets` measures progress in the upstream's own terms.
`definition` turns the stored definition of a source into the source. Called by `reclock` and `ingest`, and by
the engine when a source is created.

Promise: the rows of a source are a function of its definition and of a range of offsets alone. Reading a
range again, on any machine, returns the same rows.
"""
