"""SUBSCRIBE: the changes of a relation or query, in the shape that was asked for, as they become complete.

`spec` says what one subscription's rows look like, `resolve` makes it from the statement's output clause;
`shape` turns updates of complete times into those rows, which `order` and `sort_keys` sort within one time;
all these are pure, Arrow in and Arrow out. Called by the engine. Promises: nothing of a time is shaped before
the time is complete, no state crosses times, and equal specs give equal rows.
"""
