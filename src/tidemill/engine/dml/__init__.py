"""Statements that write rows: INSERT, UPDATE, DELETE, TRUNCATE and COPY FROM.

Called by `session.planner`. Promises that the updates of a statement belong to one transaction. A
statement that reads and writes commits only if the rows that it read are unchanged.
"""
