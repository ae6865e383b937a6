"""The tour of Kafka sources, taken as its README tells: it checks every answer that it shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.debezium import Debezium, SchemaRegistry
from support.kafka import Kafka
from support.server import ServerProcess

TOUR = Path(__file__).resolve().parents[2] / "examples" / "kafka" / "tour.py"


# A server's start, four other programs' and a dozen ticks.
@pytest.mark.timeout(1200)
def test_the_tour_goes_to_its_end(
    server: ServerProcess, kafka: Kafka, registry: SchemaRegistry, debezium: Debezium
) -> None:
    with debezium.sql() as sql:
        sql.execute("CREATE TABLE example_people (id int PRIMARY KEY, name text)")
    prefix = debezium.capture("public.example_people")
    addresses = {
        "PGDSN": server.sql_dsn,
        "KAFKA": kafka.bootstrap,
        "REGISTRY": registry.url,
        "UPSTREAM": debezium.postgres.dsn,
        "PREFIX": prefix,
    }
    tour = subprocess.run(
        [sys.executable, str(TOUR)],
        env={**os.environ, **addresses},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert tour.returncode == 0, tour.stdout + tour.stderr
    assert tour.stdout.endswith("That was the tour.\n")
    debezium.release(prefix)
