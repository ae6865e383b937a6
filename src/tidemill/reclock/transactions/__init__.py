"""Upstream transactions as cuts of several Kafka topics.

Called by `ingest.transactions`. Debezium announces transactions in a topic of their own: BEGIN, and END with
the number of changes per collection. `log` holds the announcements that are not finished, `changes` what was
seen in the topics of the tables, and `cuts` joins them: offsets of every topic behind a whole number of
transactions in the order of their commits. Pure; no I/O. The rules, and why they hold:
docs/design/20261119-transaction-topic.md.
"""
