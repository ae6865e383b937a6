"""Statements that change the catalog: CREATE, ALTER, DROP, COMMENT, GRANT and their kind.

Called by `session.planner`, one `plan_...` function per statement. Promises that everything that can be
checked is checked before the catalog changes, and that a change is atomic and durable (`catalog_changes`).
"""
