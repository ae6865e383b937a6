"""The inputs of queries: collections by name, opened at a time, and their changes.

Called by `views`, `sinks` and `engine` (SELECT and SUBSCRIBE); nothing here knows a session. `collections`
finds where a relation is stored and up to when it is complete. `opened` opens all inputs of a query at one
time. `queries` evaluates a query and follows its changes. `names` resolves names. Promises: a collection is
read only at times at which it is complete, and an open input holds `since` back.
"""
