"""TRANSACTION METADATA on a real server and broker: tables show whole upstream transactions, and what stands
in the way is told."""

from __future__ import annotations

import json
import random
from typing import Any

import psycopg
import pytest

from engine.asking import run, until
from support.kafka import Kafka
from support.whole_bank import Bank


@pytest.fixture
def bank(home: psycopg.Connection[Any], kafka: Kafka) -> Bank:
    return Bank(home, kafka)


@pytest.mark.parametrize("envelope", ["DEBEZIUM", "DEBEZIUM UPSERT"], ids=["classic", "upsert"])
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
    assert bank.torn() == []


def test_records_in_any_order_of_the_topics(bank: Bank) -> None:
    chance = random.Random(3)
    bank.create()
    for _ in range(40):
        for _ in range(chance.randrange(4)):
            bank.raise_both()
        if chance.random() < 0.1:
            bank.log.restart()
        some = [name for name in bank.log.pending() if chance.random() < 0.7]
        if some:
            bank.log.flush(*some, most=chance.choice([1, 2, 5, 100]))
    bank.log.flush()
    until(bank.values, [(bank.value, bank.value)])
    assert bank.torn() == []


def test_a_table_that_is_made_later(bank: Bank) -> None:
    bank.create_topic()
    bank.create_table("left")
    for _ in range(3):
        bank.raise_both()
    bank.log.flush()
    until(lambda: run(bank.home, "SELECT data->>'v' FROM l"), [("3",)])
    bank.create_table("right")
    until(bank.values, [(3, 3)])
    bank.raise_both()
    bank.log.flush("public.left", "transaction")
    bank.log.flush("public.right")
    until(bank.values, [(4, 4)])
    assert bank.torn() == []
    run(bank.home, "DROP SOURCE r")
    # Without the table nobody waits for its changes.
    bank.raise_both()
    bank.log.flush("public.left", "transaction")
    until(lambda: run(bank.home, "SELECT data->>'v' FROM l"), [("5",)])
    with pytest.raises(psycopg.errors.DependentObjectsStillExist):
        run(bank.home, "DROP SOURCE tx")


def test_what_never_completes_is_told_and_given_up(bank: Bank) -> None:
    bank.create()
    until(bank.values, [(0, 0)])
    lost = bank.raise_both(counted=2)
    bank.raise_both()
    bank.log.flush()

    def waits() -> object:
        ((details,),) = run(
            bank.home, "SELECT details->>'waits' FROM mz_internal.mz_source_statuses WHERE name = 'r'"
        )
        return details is not None and (
            f'for transaction "{lost}" has 2 changes of public.' in details
            and f"ALTER SOURCE tx SET (GIVE UP TRANSACTION '{lost}')" in details
        )

    until(waits, True)
    assert bank.values() == [(0, 0)]
    with pytest.raises(psycopg.Error) as caught:
        run(bank.home, f"ALTER SOURCE tx SET (GIVE UP TRANSACTION '{int(lost) + 1}')")
    assert caught.value.diag.message_detail == f'It is "{lost}" that is.'
    with pytest.raises(psycopg.Error) as caught:
        run(bank.home, f"ALTER SOURCE l SET (GIVE UP TRANSACTION '{lost}')")
    assert caught.value.sqlstate == "42809"
    run(bank.home, f"ALTER SOURCE tx SET (GIVE UP TRANSACTION '{lost}')")
    until(bank.values, [(2, 2)])


def test_an_end_without_begin_stops_the_tables_alone(bank: Bank, kafka: Kafka) -> None:
    other = kafka.create_topic()
    run(bank.home, f"CREATE SOURCE calm FROM KAFKA CONNECTION k (TOPIC '{other}') FORMAT TEXT")
    bank.create()
    bank.raise_both()
    bank.log.flush()
    until(bank.values, [(1, 1)])
    bank.log.txid += 1
    bank.log.tick()
    bank.log.announce("END", {})
    bank.log.flush()

    def status(name: str) -> object:
        return run(
            bank.home, f"SELECT status, error FROM mz_internal.mz_source_statuses WHERE name = '{name}'"
        )

    for name in "lr":
        until(lambda name=name: status(name), [("stalled", "the transaction topic has an END without BEGIN")])
    kafka.produce(other, [(None, b"on")])
    until(lambda: run(bank.home, "SELECT * FROM calm"), [("on",)])


def test_a_change_without_a_transaction_stops_its_table(bank: Bank) -> None:
    bank.create()
    until(bank.values, [(0, 0)])
    bank.raise_both()
    made = bank.log.queued["public.left"][0]
    value = json.loads(made.value or "") | {"transaction": None}
    bank.log.queued["public.left"][0] = made._replace(value=json.dumps(value))
    bank.log.flush()
    until(
        lambda: run(bank.home, "SELECT status, error FROM mz_internal.mz_source_statuses WHERE name = 'l'"),
        [("stalled", "a change does not say to which transaction it belongs")],
    )


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("plain", 'source "plain" is not of a transaction topic'),
        ("many", 'source "many" is not of a transaction topic'),
        ("nothing", 'relation "nothing" does not exist'),
        ("t", '"t" is not a source'),
    ],
    ids=["plain", "many", "nothing", "table"],
)
def test_what_is_no_transaction_topic(bank: Bank, kafka: Kafka, source: str, said: str) -> None:
    run(bank.home, "CREATE TABLE t (a int)")
    topic, many = kafka.create_topic(), kafka.create_topic(partitions=2)
    run(bank.home, f"CREATE SOURCE plain FROM KAFKA CONNECTION k (TOPIC '{topic}') FORMAT TEXT")
    run(bank.home, f"CREATE SOURCE many FROM KAFKA CONNECTION k (TOPIC '{many}') FORMAT JSON")
    with pytest.raises(psycopg.Error) as caught:
        run(
            bank.home,
            f"CREATE SOURCE l FROM KAFKA CONNECTION k (TOPIC '{bank.log.topics['public.left']}') "
            "KEY FORMAT JSON VALUE FORMAT JSON ENVELOPE DEBEZIUM "
            f"(TRANSACTION METADATA (SOURCE {source}, COLLECTION 'public.left'))",
        )
    assert caught.value.diag.message_primary == said


def test_the_statement_with_the_names_of_today(bank: Bank) -> None:
    bank.create()
    run(bank.home, "ALTER SOURCE tx RENAME TO upstream_transactions")
    ((_, statement),) = run(bank.home, "SHOW CREATE SOURCE l")
    assert "upstream_transactions, COLLECTION 'public.left'))" in statement


def test_a_topic_that_is_compacted_is_refused(bank: Bank, kafka: Kafka) -> None:
    bank.create_topic()
    bank.log.topics["public.left"] = kafka.create_topic(config={"cleanup.policy": "compact"})
    with pytest.raises(psycopg.Error) as caught:
        bank.create_table("left", "DEBEZIUM UPSERT")
    assert caught.value.diag.message_primary == f'topic "{bank.log.topics["public.left"]}" is compacted'
    assert "every change of a transaction" in (caught.value.diag.message_detail or "")
