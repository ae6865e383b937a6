"""A tour of Kafka sources: messages as rows, the latest value per key from Avro with a registry, which offset
became visible when, and the changes of a PostgreSQL.

Start in two other terminals

    tidemill dev kafka --debezium
    tidemill serve --data-dir data

and run this. It drops what it makes in Tidemill; topics stay. Other addresses: PGDSN (Tidemill), KAFKA,
REGISTRY and UPSTREAM (the PostgreSQL).
"""

from __future__ import annotations

import io
import json
import os
import time
import urllib.request
from typing import Any

import fastavro
import psycopg
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

TIDEMILL = os.environ.get("PGDSN", "host=localhost port=6875 user=materialize dbname=materialize")
KAFKA = os.environ.get("KAFKA", "127.0.0.1:9092")
REGISTRY = os.environ.get("REGISTRY", "http://127.0.0.1:8081/apis/ccompat/v7")
UPSTREAM = os.environ.get("UPSTREAM", "host=127.0.0.1 port=5433 user=postgres dbname=postgres")
# What the topics of Debezium begin with.
PREFIX = os.environ.get("PREFIX", "dev")
WAIT_SECONDS = 60.0

ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "customer", "type": "string"},
        {"name": "cents", "type": "long"},
        {"name": "status", "type": {"type": "enum", "name": "Status", "symbols": ["NEW", "PAID", "SENT"]}},
    ],
}


class Tour:
    """The clients, and how results are shown."""

    def __init__(self) -> None:
        self.sql = psycopg.connect(TIDEMILL, autocommit=True)
        # A source that has never been complete is waited for; this tour does not wait for ever.
        self.sql.execute(f"SET statement_timeout = '{WAIT_SECONDS:.0f}s'".encode())
        self.producer = Producer({"bootstrap.servers": KAFKA})
        # Topics of this tour alone, however often it is taken.
        self.number = int(time.time())

    def topic(self, name: str, partitions: int) -> str:
        admin = AdminClient({"bootstrap.servers": KAFKA, "log_level": 0})
        topic = f"{name}-{self.number}"
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(WAIT_SECONDS)
        return topic

    def run(self, statement: str) -> None:
        print(f"\n{statement};", flush=True)
        self.sql.execute(statement.encode())

    def show(self, query: str) -> list[tuple[Any, ...]]:
        print(f"\n{query};", flush=True)
        rows = self.sql.execute(query.encode()).fetchall()
        for row in rows:
            print("  ", " | ".join("" if value is None else str(value) for value in row))
        return rows

    def wait_for(self, query: str, wanted: list[tuple[Any, ...]]) -> None:
        """Show the query once it has the answer that it will have: the next tick brings what was written."""
        deadline = time.monotonic() + WAIT_SECONDS
        while self.sql.execute(query.encode()).fetchall() != wanted:
            if time.monotonic() > deadline:
                raise SystemExit(f"{self.show(query)} is not {wanted}")
            time.sleep(0.2)
        self.show(query)

    def produce(self, topic: str, *messages: tuple[str | bytes, str | bytes | None]) -> tuple[int, int]:
        """Write messages; partition and offset of the last one that is acknowledged."""
        placed: list[tuple[int, int]] = []

        def written(error: KafkaError | None, message: Message) -> None:
            if error is None:
                placed.append((message.partition() or 0, message.offset() or 0))

        for key, value in messages:
            self.producer.produce(topic, key=key, value=value, on_delivery=written)
        if self.producer.flush(WAIT_SECONDS) or len(placed) < len(messages):
            raise SystemExit(f"Kafka at {KAFKA} does not take messages")
        return placed[-1]


def heading(text: str) -> None:
    print(f"\n\n== {text} ==", flush=True)


def every_message_a_row(tour: Tour) -> None:
    heading("Every message a row")
    topic = tour.topic("readings", 2)
    tour.produce(topic, ("pump-1", '{"celsius": 21.5}'), ("pump-2", '{"celsius": 19}'))
    tour.run(
        f"CREATE SOURCE tour_readings FROM KAFKA CONNECTION tour_kafka (TOPIC '{topic}')\n"
        "  KEY FORMAT TEXT VALUE FORMAT JSON INCLUDE KEY AS device, TIMESTAMP AS at\n"
        "  ENVELOPE NONE"
    )
    query = "SELECT device, data->>'celsius' AS celsius FROM tour_readings ORDER BY device, celsius"
    tour.wait_for(query, [("pump-1", "21.5"), ("pump-2", "19")])
    tour.produce(topic, ("pump-1", '{"celsius": 22}'))
    tour.wait_for(query, [("pump-1", "21.5"), ("pump-1", "22"), ("pump-2", "19")])


def the_latest_of_each_key(tour: Tour) -> None:
    heading("The latest value of each key, from Avro with a schema registry")
    topic = tour.topic("orders", 3)
    number = register(f"{topic}-value", ORDER)

    def order(customer: str, cents: int, status: str) -> bytes:
        out = io.BytesIO(b"\x00" + number.to_bytes(4, "big"))
        out.seek(5)
        fastavro.schemaless_writer(out, ORDER, {"customer": customer, "cents": cents, "status": status})
        return out.getvalue()

    tour.produce(topic, ("o1", order("ada", 1250, "NEW")), ("o2", order("bob", 300, "NEW")))
    tour.run(
        f"CREATE SOURCE tour_orders FROM KAFKA CONNECTION tour_kafka (TOPIC '{topic}')\n"
        "  KEY FORMAT TEXT\n"
        "  VALUE FORMAT AVRO USING CONFLUENT SCHEMA REGISTRY CONNECTION tour_registry\n"
        "  INCLUDE KEY AS id ENVELOPE UPSERT"
    )
    query = "SELECT id, customer, cents, status FROM tour_orders ORDER BY id"
    tour.wait_for(query, [("o1", "ada", 1250, "NEW"), ("o2", "bob", 300, "NEW")])
    then = tour.show("SELECT mz_now()")[0][0]
    print("\nBob cancels: a message without a value deletes its key. And Ada pays.")
    tour.produce(topic, ("o2", None))
    partition, offset = tour.produce(topic, ("o1", order("ada", 1250, "PAID")))
    tour.wait_for(query, [("o1", "ada", 1250, "PAID")])

    heading("Which offset became visible when, and what was before")
    tour.show('SELECT partition, "offset" FROM tour_orders_progress ORDER BY partition')
    tour.show(
        "SELECT min(b.mz_timestamp) AS paid_is_visible_from FROM mz_internal.mz_source_bindings AS b\n"
        "  JOIN mz_sources AS s ON s.id = b.source_id\n"
        f"  WHERE s.name = 'tour_orders' AND b.partition = '{partition}' AND b.value > {offset}"
    )
    tour.wait_for(f"{query} AS OF {then}", [("o1", "ada", 1250, "NEW"), ("o2", "bob", 300, "NEW")])


def the_changes_of_a_postgres(tour: Tour) -> None:
    heading("The changes of a PostgreSQL, by Debezium")
    with psycopg.connect(UPSTREAM, autocommit=True) as upstream:
        upstream.execute("CREATE TABLE IF NOT EXISTS example_people (id int PRIMARY KEY, name text)")
        upstream.execute("DELETE FROM example_people")
        upstream.execute("INSERT INTO example_people VALUES (1, 'ada'), (2, 'bob')")
        topic = f"{PREFIX}.public.example_people"
        wait_for_topic(topic)
        tour.run(
            f"CREATE SOURCE tour_people FROM KAFKA CONNECTION tour_kafka (TOPIC '{topic}')\n"
            "  FORMAT AVRO USING CONFLUENT SCHEMA REGISTRY CONNECTION tour_registry\n"
            "  ENVELOPE DEBEZIUM UPSERT"
        )
        query = "SELECT id, name FROM tour_people ORDER BY id"
        tour.wait_for(query, [(1, "ada"), (2, "bob")])
        upstream.execute("UPDATE example_people SET name = 'augusta' WHERE id = 1")
        upstream.execute("DELETE FROM example_people WHERE id = 2")
        tour.wait_for(query, [(1, "augusta")])


def register(subject: str, schema: dict[str, Any]) -> int:
    """The number that the registry gives to a schema."""
    request = urllib.request.Request(
        f"{REGISTRY}/subjects/{subject}/versions",
        data=json.dumps({"schema": json.dumps(schema)}).encode(),
        headers={"Content-Type": "application/vnd.schemaregistry.v1+json"},
    )
    with urllib.request.urlopen(request, timeout=WAIT_SECONDS) as answer:
        return json.load(answer)["id"]


def wait_for_topic(topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": KAFKA, "log_level": 0})
    deadline = time.monotonic() + WAIT_SECONDS
    while topic not in admin.list_topics(timeout=WAIT_SECONDS).topics:
        if time.monotonic() > deadline:
            raise SystemExit(f"Debezium makes no topic {topic}: start `tidemill dev kafka --debezium`")
        time.sleep(0.1)


def main() -> None:
    try:
        AdminClient({"bootstrap.servers": KAFKA, "log_level": 0}).list_topics(timeout=5)
    except KafkaException as e:
        raise SystemExit(f"no Kafka at {KAFKA}: start `tidemill dev kafka --debezium`") from e
    tour = Tour()
    try:
        tour.run(f"CREATE CONNECTION tour_kafka TO KAFKA (BROKER '{KAFKA}', SECURITY PROTOCOL PLAINTEXT)")
        tour.run(f"CREATE CONNECTION tour_registry TO CONFLUENT SCHEMA REGISTRY (URL '{REGISTRY}')")
        every_message_a_row(tour)
        the_latest_of_each_key(tour)
        the_changes_of_a_postgres(tour)
    finally:
        for source in ("tour_readings", "tour_orders", "tour_people"):
            tour.sql.execute(f"DROP SOURCE IF EXISTS {source} CASCADE".encode())
        for connection in ("tour_kafka", "tour_registry"):
            tour.sql.execute(f"DROP CONNECTION IF EXISTS {connection} CASCADE".encode())
    print("\nThat was the tour.")


if __name__ == "__main__":
    main()
