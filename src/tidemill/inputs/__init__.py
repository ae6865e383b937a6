"""What a query reads: collections by name, open at a time, and their changes.

Called by `views`, `sinks` and `engine` (SELECT and SUBSCRIBE); nothing here knows a session. `collections`
says where a relation is kept and up to when it is complete, `opened` opens all inputs of a query at one time,
`queries` evaluates a query and follows its changes, `names` resolves names. Promises that a collection is
read only at times at which it is complete, and that what is open holds `since` back.
"""
