"""Catalog: items with their stable ids, names and dependencies, stored in a shard of versioned items.

Called by sessions and the CLI. `items` defines the values, `codec` their JSON form, and `names` the rules of
identifiers. `state` is one immutable state with its lookups, `ops` changes it, and `store` is the durable
catalog over a shard. `secrets` stores what the catalog must not hold. `connections` resolves the definition
of a source into what opens it.

Promises: a state never changes. A change is durable before it is visible. Ids are never reused. The shard
provides the state as of an earlier time.
"""
