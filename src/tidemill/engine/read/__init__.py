"""Statements that return rows: SELECT, SHOW, EXPLAIN, COPY TO, and the queries of cursors.

Called by `session.planner`. Promises that all inputs of a query are read at one time, that this time is at or
after every confirmed write, and that a result streams in bounded memory.
"""
