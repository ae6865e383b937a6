"""PostgreSQL's functions of single values, in Python: what Spark has no function for with the same answer.

Called by `sql.functions` (which gives them to Spark by way of `rowwise`) and by `sql.local`. Each module is
one group; functions take and give plain values and raise PostgreSQL's errors. Nothing here knows of queries,
Arrow or Spark."""
