"""Materialized views: queries whose results are kept in shards, at every time.

`machine` keeps one view up to date. `error_follower` follows a query whose result is currently an error.
`service` runs all views of a server. `program` defines what they need of the engine to run a query. Called by
the engine. Promises: the contents of a view at a complete time are its query's result at that time and never
change. After a crash a view continues at its upper, from its own contents. A view that fails or is slow
delays no other.
"""
