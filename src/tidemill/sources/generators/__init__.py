"""Load generators: sources with synthetic records, for demos, tests and benchmarks.

`load` is the common part: events that fall due by the clock, counted from 0. `options` defines the options of
a statement, `draws` provides all randomness, and each generator has its own module. Opened by
`sources.definition`.

Promises: the rows of an event are a function of its number and of the definition alone. All numbers are
computed on whole columns, in integers, so they are the same on every machine.
"""
