"""Kafka as a source.

`layout` says which columns a topic gives, `source` where its partitions stand, `consume` reads a range of one
inside a task, and `messages` makes rows of what was read. `client` and `metadata` talk to the brokers; the
engine calls them too, when a source is created.
"""
