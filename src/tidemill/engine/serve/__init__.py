"""What runs behind the statements: maintenance of shards, materialized views and sinks, metrics.

Opened by `engine.TidemillEngine`. Promises that background work never delays a statement for longer than a
commit.
"""
