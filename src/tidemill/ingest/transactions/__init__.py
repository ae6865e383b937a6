"""Sources WITH TRANSACTION METADATA: their bindings, decided for all tables of a transaction topic together.

`TransactionGroup` reads the topic and the blocks of the tables' changes on the driver, finds cuts between
upstream transactions (`reclock.transactions`), and gives each cut one time. A decision is durable in the cuts
shard before any table is bound; each table's machine then binds its part at that time, after a crash too. So
at every time the tables show a whole number of transactions. `CutsShard` is what a restart knows; a
`TableTopic` is one table's topic.
"""
