"""Kafka source.

`layout` derives the columns of a topic, `source` reports the positions of its partitions, `consume` reads a
range of a partition inside a task, and `messages` turns records into rows. `client` configures librdkafka and
explains its errors. `metadata` queries the brokers. The engine and the Kafka sink use both, too.
"""
