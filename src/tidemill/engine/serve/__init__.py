"""Background work: maintenance of shards, materialized views, sinks, metrics.

Opened by `engine.TidemillEngine`. Promises that background work never delays a statement for longer
than a commit.
"""
