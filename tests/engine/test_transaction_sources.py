"""TRANSACTION METADATA on a real server and broker: tables show whole upstream transactions, and what stands
in the way is told."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from engine.asking import run, until
from support.kafka import Kafka
from support.upstream_log import UpstreamLog

TABLES = ("left", "right")
BOTH = (
    "SELECT l.v, r.v FROM (SELECT (data->>'v')::int AS v FROM l) l, (SELECT (data->>'v')::int AS v FROM r) r"
)


class Bank:
    """Two tables with one row each, and the sources `l` and `r` over them."""

    def __init__(self, home: psycopg.Connection[Any], kafka: Kafka) -> None:
        self.home = home
        names = [*(f"public.{table}" for table in TABLES), "transaction"]
        self.log = UpstreamLog(kafka, {name: kafka.create_topic() for name in names})
        run(home, f"CREATE CONNECTION k TO KAFKA (BROKER '{kafka.bootstrap}')")
        self.value = 0
        for table in TABLES:
            self.log.snapshot(f"public.{table}", {"id": 1, "v": 0})
        self.log.flush()

    def create(self, envelope: str = "DEBEZIUM") -> None:
        self.create_topic()
        for table in TABLES:
            self.create_table(table, envelope)

    def create_topic(self) -> None:
        topic = self.log.topics["transaction"]
        run(self.home, f"CREATE SOURCE tx FROM KAFKA CONNECTION k (TOPIC '{topic}') FORMAT JSON")

    def create_table(self, table: str, envelope: str = "DEBEZIUM") -> None:
        topic = self.log.topics[f"public.{table}"]
        run(
            self.home,
            f"CREATE SOURCE {table[0]} FROM KAFKA CONNECTION k (TOPIC '{topic}') "
            f"KEY FORMAT JSON VALUE FORMAT JSON ENVELOPE {envelope} "
            f"(TRANSACTION METADATA (SOURCE tx, COLLECTION 'public.{table}'))",
        )

    def raise_both(self, **options: Any) -> str:
        """One transaction: the values of both tables."""
        before, self.value = self.value, self.value + 1
        return self.log.transaction(
            *((f"public.{table}", {"id": 1, "v": before}, {"id": 1, "v": self.value}) for table in TABLES),
            **options,
        )

    def values(self) -> object:
        """The values, or an error's first line."""
        try:
            return run(self.home, BOTH)
        except psycopg.Error as e:
            return e.diag.message_primary


@pytest.fixture
def bank(home: psycopg.Connection[Any], kafka: Kafka) -> Bank:
    return Bank(home, kafka)


@pytest.mark.parametrize("envelope", ["DEBEZIUM", "DEBEZIUM UPSERT"])
def test_a_transaction_is_seen_when_all_of_it_is_there(bank: Bank, envelope: str) -> None:
    bank.create(envelope)
    until(bank.values, [(0, 0)])
    bank.raise_both()
    # The last table's change comes last.
    bank.log.flush("transaction", "public.left")
    bank.raise_both()
    bank.log.flush("transaction", "public.left")
    assert bank.values() == [(0, 0)]
    bank.log.flush("public.right", most=1)
    until(bank.values, [(1, 1)])
    assert bank.values() == [(1, 1)]
    bank.log.flush()
    until(bank.values, [(2, 2)])
