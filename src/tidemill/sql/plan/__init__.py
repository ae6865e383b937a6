"""The logical plan of a query: typed relational operators and expressions, as immutable data.

`sql.bind` makes it, once per query; `sql.lower` makes Spark SQL of it. What is asked of a query without
running it (its properties, its text in EXPLAIN) is computed from the plan. Nothing here knows Spark, a
catalog or a session.
"""
