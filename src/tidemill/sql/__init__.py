"""SQL: statements, names, and PostgreSQL expressions translated to Spark.

The engine calls `parse.parse` for text to dataclasses (`ast`), `render.to_sql` for the way back, and the
binder for query bodies to Spark. Nothing here knows of shards, sessions or sockets.
"""
