"""Sessions and transactions: statements in, outcomes out.

The server layer calls it through `api`. It owns the running system (`engine.Engine`): the environment of a
data directory, the catalog, the Spark host and the maintenance thread; and what one client is doing
(`session.EngineSession`): its variables, its transaction, its cursors. It promises strict serializability
for tables, that a statement's failure hurts only its session, and that the event loop is never blocked:
persistence, encoding and Spark run on worker threads.
"""
