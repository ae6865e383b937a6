"""Fixtures shared by all tests live in `tests/support`, one module per real part that they start."""

pytest_plugins = ["support.spark", "support.server", "support.s3"]
