"""SUBSCRIBE: the changes of a relation or query, in the requested shape, as they become complete.

Called by the engine. `spec` describes the rows of one subscription; `resolve` makes it from the statement's
output clause. `shape` turns updates of complete times into those rows; `order` and `sort_keys` sort them
within one time. All these are pure, Arrow in and Arrow out. Promises: nothing of a time is shaped before the
time is complete, no state crosses times, and equal specs give equal rows.
"""
