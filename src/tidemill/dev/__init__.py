"""Real upstreams on this machine, for trying and for tests: a Kafka broker, a schema registry, Debezium,
PostgreSQL.

Called by the command line (`tidemill dev`) and by the test suite. Each is started from packages on loopback
ports in a folder of its own, and stopped by its process id.
"""
