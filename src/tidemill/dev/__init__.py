"""Local upstreams for trials and tests: a Kafka broker, a schema registry, Debezium and PostgreSQL.

Called by the command line (`tidemill dev`) and by the test suite. Each is started from packages, on loopback
ports and in its own folder, and is stopped by its process id.
"""
