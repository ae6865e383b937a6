"""Fixtures shared by all tests live in `tests/support`, one module per real part that they start."""

import os

pytest_plugins = ["support.spark", "support.server", "support.s3"]

# The JVMs of a test run live for seconds to minutes, too short for the optimizing compiler to pay. Measured
# without it: two thirds of the processor time for Spark's start, half of it for a hundred small queries.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
