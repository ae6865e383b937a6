"""The catalog: what exists. Items, their stable ids, names, dependencies; itself a shard of versioned items.

`items` are the values, `codec` their JSON, `names` the rules of identifiers, `state` one immutable state with
its lookups, `ops` the changes of it, `store` the durable catalog over a shard, `secrets` the store of what
the catalog must not hold, `connections` the way from a source's definition to what opens it. Called by
sessions and the CLI. Promises: a state never changes; a change is durable before it is seen; ids are never
used twice; the state as of an earlier time can be had from the shard.
"""
