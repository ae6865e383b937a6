"""The running system: executes statements and returns outcomes.

`api` is the interface for the server layer. `engine.TidemillEngine` owns the environment of a data
directory, the catalog, the Spark host and the background work. Each sub-package states its promises in its
`__init__`:

- `session/`: the session of one client: transaction, variables, cursors, prepared statements; the plan of
  a statement
- `ddl/`: statements that change the catalog
- `dml/`: statements that write rows
- `read/`: SELECT, SHOW, EXPLAIN and COPY TO
- `subscribe/`: SUBSCRIBE
- `relations/`: name resolution, the system relations and PostgreSQL's catalogs
- `audit/`: the audit log
- `serve/`: background work: maintenance, views, sinks, metrics

Promises strict serializability for tables. A failed statement affects only its session. The event loop
never blocks: persistence, encoding and Spark run on worker threads.
"""
