"""Materialized views: queries whose answers are kept in shards, at every time.

`machine` keeps one view up to date, `error_follower` follows a query whose answer is an error now, `service`
runs all views of a server; `program` is what they need of the engine to run a query. Called by the engine.
Promises: what a view holds at a complete time is its query's answer there and never changes; after a crash a
view goes on where its upper stands, from what it holds itself; a view that fails or is slow delays no other.
"""
