"""What is built over tables that show whole transactions: views, materialized views, subscriptions and reads
of the past see whole transactions too, while sources are altered, dropped and made again."""

from __future__ import annotations

import random
import re
from typing import Any

import psycopg
import pytest

from engine.asking import until
from support.kafka import Kafka
from support.whole_bank import BOTH, Bank

OFF = BOTH.replace("l.v, r.v", "l.v - r.v AS off, l.v AS v")


@pytest.fixture
def bank(home: psycopg.Connection[Any], kafka: Kafka) -> Bank:
    return Bank(home, kafka)


def test_views_over_both_tables(bank: Bank) -> None:
    chance = random.Random(5)
    bank.create()
    until(bank.values, [(0, 0)])
    bank.run(f"CREATE VIEW seen AS {OFF}")
    bank.run(f"CREATE MATERIALIZED VIEW kept AS {OFF}")
    for n in range(30):
        bank.raise_both()
        if n == 10:
            bank.run("ALTER SOURCE l SET (TIMESTAMP INTERVAL '200ms')")
        if n == 20:
            bank.log.restart()
        some = [name for name in bank.log.pending() if chance.random() < 0.6]
        if some:
            bank.log.flush(*some, most=chance.choice([1, 2, 100]))
    bank.log.flush()
    for view in ("seen", "kept"):
        until(lambda view=view: bank.run(f"SELECT * FROM {view}"), [(0, bank.value)])
        rows = bank.run(f"SUBSCRIBE {view} AS OF EARLIEST UP TO LATEST")
        assert {row[-2] for row in rows} == {0}, view
        shown = [int(row[-1]) for row in rows if row[1] > 0]
        assert shown == sorted(shown), view


def test_the_past_of_a_table_that_is_made_later(bank: Bank) -> None:
    """It is not readable before it has what the others have, and never before the transaction topic is."""
    bank.create_topic()
    bank.create_table("left")
    bank.raise_both()
    bank.log.flush()
    until(lambda: bank.run("SELECT data->>'v' FROM l"), [("1",)])
    ((before,),) = bank.run("SELECT mz_now()::text")
    bank.create_table("right")
    until(bank.values, [(1, 1)])
    assert bank.run(f"SELECT data->>'v' FROM l AS OF {before}") == [("1",)]
    with pytest.raises(psycopg.Error) as caught:
        bank.run(f"{BOTH} AS OF {before}")
    assert caught.value.diag.message_primary == "could not find a valid timestamp for the query"
    assert (caught.value.diag.message_detail or "").startswith('"r" is readable from ')


def test_no_table_is_readable_before_its_transaction_topic(bank: Bank) -> None:
    keep = "WITH (RETAIN HISTORY FOR '1 hour')"
    ((before,),) = bank.run("SELECT mz_now()::text")
    bank.create_topic(keep)
    bank.create_table("left", clauses=keep)
    until(lambda: bank.run("SELECT data->>'v' FROM l"), [("0",)])
    for query in ("SELECT data FROM l AS OF", "SUBSCRIBE l AS OF", "SUBSCRIBE (SELECT data FROM l) AS OF"):
        with pytest.raises(psycopg.Error) as caught:
            bank.run(f"{query} {before}")
        said = caught.value.diag
        assert said.sqlstate == "22000"
        assert said.message_primary == 'source "l" cannot be read at times before its transaction topic'
        pattern = rf'"l" is readable from .* on; {before} .* was asked for\. Source "tx", which has .* on\.'
        assert re.fullmatch(pattern, said.message_detail or ""), said.message_detail
    # The topic's history alone goes further back.
    ((between,),) = bank.run("SELECT mz_now()::text")
    bank.create_table("right", clauses=keep)
    until(bank.values, [(0, 0)])
    with pytest.raises(psycopg.Error, match="could not find a valid timestamp for the query"):
        bank.run(f"SELECT data FROM r AS OF {between}")


def test_a_table_of_a_source_of_its_own_tables(bank: Bank) -> None:
    bank.create()
    topic = bank.log.topics["public.left"]
    bank.run(f"CREATE SOURCE raw FROM KAFKA CONNECTION k (TOPIC '{topic}')")
    with pytest.raises(psycopg.Error) as caught:
        bank.run(
            f'CREATE TABLE later FROM SOURCE raw (REFERENCE "{topic}") KEY FORMAT JSON VALUE FORMAT JSON '
            "ENVELOPE DEBEZIUM (TRANSACTION METADATA (SOURCE tx, COLLECTION 'public.left'))"
        )
    told = "TRANSACTION METADATA is not possible with CREATE TABLE ... FROM SOURCE"
    assert (caught.value.sqlstate, caught.value.diag.message_primary) == ("0A000", told)
    with pytest.raises(psycopg.errors.DependentObjectsStillExist):
        bank.run("DROP SOURCE tx")


def test_a_table_that_is_dropped_and_made_again(bank: Bank) -> None:
    bank.create("DEBEZIUM UPSERT")
    for _ in range(3):
        bank.raise_both()
    bank.log.flush()
    until(bank.values, [(3, 3)])
    bank.run("DROP SOURCE r")
    bank.raise_both()
    bank.log.flush()
    until(lambda: bank.run("SELECT data->>'v' FROM l"), [("4",)])
    bank.create_table("right", "DEBEZIUM UPSERT")
    until(bank.values, [(4, 4)])
    bank.raise_both()
    bank.log.flush("transaction", "public.right")
    bank.log.flush()
    until(bank.values, [(5, 5)])
    assert bank.torn() == []


def test_what_cannot_be_read_is_waited_for(bank: Bank) -> None:
    """A change whose message is broken says of no transaction that it belongs to it."""
    bank.create("DEBEZIUM UPSERT")
    until(bank.values, [(0, 0)])
    lost = bank.raise_both()
    made = bank.log.queued["public.left"][0]
    bank.log.queued["public.left"][0] = made._replace(value="{broken")
    bank.log.flush()

    def waits() -> object:
        ((details,),) = bank.run(
            "SELECT details->>'waits' FROM mz_internal.mz_source_statuses WHERE name = 'r'"
        )
        return details is not None and f'transaction "{lost}" has 1 changes of public.left; 0' in details

    until(waits, True)
    bank.run(f"ALTER SOURCE tx SET (GIVE UP TRANSACTION '{lost}')")
    until(lambda: bank.run("SELECT data->>'v' FROM r"), [("1",)])
    with pytest.raises(psycopg.Error) as caught:
        bank.run("SELECT * FROM l")
    assert "decode" in (caught.value.diag.message_primary or "").lower()
