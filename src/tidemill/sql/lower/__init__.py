"""The lowering of logical plans to Spark SQL: operators and expressions as sqlglot trees.

Called by `sql.bind`, whose `BoundQuery` keeps the tree. The tree of a plan uses the plan's aliases, and its
output columns are the plan's. It still contains markers for parameters and session values
(`functions.markers`).
"""
