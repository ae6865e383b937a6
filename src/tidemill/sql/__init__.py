"""SQL: statements, names, and the translation of PostgreSQL expressions to Spark.

The engine calls `parse.parse` to turn text into dataclasses (`ast`) and `render.to_sql` to turn them back
into text. It calls the binder to turn query bodies into Spark trees. This package does not depend on shards,
sessions or sockets.
"""
