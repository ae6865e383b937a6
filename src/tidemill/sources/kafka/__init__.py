"""Kafka source.

`layout` derives the columns of a topic, `source` reports the positions of its partitions, `consume` reads a
range of a partition inside a task, and `messages` turns records into rows. `client` and `metadata` talk to
the brokers; the engine also calls them when a source is created.
"""
