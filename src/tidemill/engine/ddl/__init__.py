"""Statements that change the catalog: CREATE, ALTER, DROP, COMMENT, GRANT and so on.

Called by `session.planner`; one `plan_...` function per statement. Promises that all checks run before the
catalog changes, and that a change is atomic and durable (`catalog_changes`).
"""
