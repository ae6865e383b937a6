"""One client's session, and the plan of one statement.

`session.EngineSession` implements `api.Session`; the server layer drives it, one statement at a time.
`planner` finds the module that plans a statement. Promises that nothing a session keeps between statements
changes an answer, and that a transaction reads at one time and commits once or not at all.
"""
