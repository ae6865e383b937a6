"""The running system: statements in, outcomes out.

`api` is the face that the server layer calls; `engine.TidemillEngine` owns the environment of a data
directory, the catalog, the Spark host and the background work. The rooms, each with an `__init__` that says
what it promises:

- `session/`: one client's session, its transaction, variables, cursors and prepared statements; the plan of a
  statement
- `ddl/`: statements that change the catalog
- `dml/`: statements that write rows
- `read/`: SELECT, SHOW, EXPLAIN and COPY TO
- `subscribe/`: SUBSCRIBE
- `relations/`: name resolution, the system relations and PostgreSQL's catalogs
- `audit/`: the audit log
- `serve/`: what runs behind the statements: maintenance, views, sinks, metrics

Promises strict serializability for tables, that a failed statement affects its session only, and that the
event loop is never blocked: persistence, encoding and Spark run on worker threads.
"""
