"""PostgreSQL's scalar functions in Python, where Spark has no function with the same result.

Called by `sql.functions` (which runs them in Spark through `rowwise`) and by `sql.local`. Each module holds
one group. Functions take and return plain values and raise PostgreSQL's errors. This package does not depend
on queries, Arrow or Spark.
"""
