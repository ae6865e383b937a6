"""Statements that write rows: INSERT, UPDATE, DELETE, TRUNCATE and COPY FROM.

Called by `session.planner`. Promises that the updates of a statement belong to one transaction, and that a
statement that reads what it writes commits only if what it read is unchanged.
"""
