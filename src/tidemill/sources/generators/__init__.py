"""Load generators: sources that make their records up, for demos, tests and measurements.

`load` is what they share: events that fall due by the clock, counted from 0. `options` are what a statement
may say of them, `draws` is all their randomness, and each generator has a file of its own. Opened by
`sources.definition`. Promises: the rows of an event are a function of its number and of the definition alone;
every number is computed by whole columns, in integers, so that they are the same on every machine.
"""
