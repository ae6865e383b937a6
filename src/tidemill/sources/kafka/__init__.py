"""Kafka source.

On the driver: `source` reports the positions of the partitions and splits ranges into pieces, and `layout`
derives the columns of a relation. In the tasks: `reader` reads a piece, `consume` an exact range of a
partition through `native`. `outputs` opens what `messages` (records to rows), `changes` (ENVELOPE DEBEZIUM)
and `dead_letters` need. `transactions` reads on the driver what Debezium's topics say about transactions.

`client` configures librdkafka and explains its errors. `metadata` queries the brokers. The engine and the
Kafka sink use both, too.
"""
