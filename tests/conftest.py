"""Fixtures shared by all tests live in `tests/support`, one module per real part that they start."""

import os

import hypothesis

pytest_plugins = [
    "support.spark",
    "support.server",
    "support.s3",
    "support.kafka",
    "support.kinesis",
    "support.mariadb",
    "support.debezium",
    "support.upstream_postgres",
]

# The JVMs of a test run live for seconds to minutes, too short for the optimizing compiler to pay. Measured
# without it: two thirds of the processor time for Spark's start, half of it for a hundred small queries.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")

# What `make test` says is a function of the code alone: the same examples each time. `make chaos` hunts for
# new ones. How long examples take to be drawn tells of the machine.
_SLOW = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile("same", derandomize=True, deadline=None, suppress_health_check=_SLOW)
hypothesis.settings.register_profile(
    "hunt", derandomize=False, deadline=None, print_blob=True, suppress_health_check=_SLOW
)
hypothesis.settings.load_profile("same")
