"""The tours of Kafka sources, run as their pages show them: examples/kafka and the README."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from support.debezium import Debezium, SchemaRegistry
from support.kafka import Kafka
from support.server import ServerProcess
from support.wire import Wire
from text.docs import Psql, matches, split

ROOT = Path(__file__).resolve().parents[2]
TOUR = ROOT / "examples" / "kafka" / "tour.py"
README = ROOT / "README.md"


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


def test_the_tour_of_the_readme(server: ServerProcess, database: str, kafka: Kafka) -> None:
    page = README.read_text()
    topic = f"readme_{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic)  # the broker of `tidemill dev kafka` would do so itself
    (code,) = re.findall(r"^```python kafka\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    code = code.replace("127.0.0.1:9092", kafka.bootstrap).replace('"orders"', f'"{topic}"')
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
    blocks = re.findall(r"^```sql kafka\n(.*?)^```$(?:\s*^```\n(.*?)\n```$)?", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    wire = Wire(f"{server.sql_dsn} dbname={database}")
    try:
        psql, got = Psql(wire), ""
        for block, shown in blocks:
            said = block.replace("127.0.0.1:9092", kafka.bootstrap).replace("'orders'", f"'{topic}'")
            for statement in split(said):
                got, failed = psql.type(statement)
                assert not failed, got
            assert not shown or matches(shown, got), got
        assert " 3" in got
    finally:
        wire.close()
