"""Fixtures: the Spark session of the test run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tidemill.ingest.warm import WORKERS
from tidemill.query.spark import SparkHost


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkHost]:
    """One SparkHost for the whole run, started by the first test that asks for it (mark such tests `spark`);
    its `session` is warm. Tests leave no views behind and never stop it."""
    host = SparkHost("local[2]", WORKERS, scratch=tmp_path_factory.mktemp("spark"), driver_memory_mb=1024)
    try:
        host.wait(600)
        yield host
    finally:
        host.stop()


@pytest.fixture(autouse=True)
def no_job_group(request: pytest.FixtureRequest) -> None:
    """A thread's jobs belong to the group that it set last, and this one runs all tests: one that cancelled
    its group would have cancelled the jobs of whoever uses the session without naming a group."""
    if "spark" in request.fixturenames:
        host: SparkHost = request.getfixturevalue("spark")
        if host.ready:
            host.session.sparkContext._jsc.clearJobGroup()  # pyright: ignore
