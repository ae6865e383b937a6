"""ON ERROR DEAD LETTER beside TRANSACTION METADATA: a change that is put aside is one of its transaction, so
its dead letter comes at the time at which the other tables show the transaction."""

from __future__ import annotations

import random
from typing import Any

import psycopg
import pytest

from engine.asking import until
from support.kafka import Kafka
from support.whole_bank import WITH_LETTERS, Bank


@pytest.fixture
def bank(home: psycopg.Connection[Any], kafka: Kafka) -> Bank:
    made = Bank(home, kafka)
    made.create_topic()
    made.create_table("left", "DEBEZIUM UPSERT", "ON ERROR DEAD LETTER")
    made.create_table("right", "DEBEZIUM UPSERT")
    until(made.values, [(0, 0)])
    return made


def test_what_is_put_aside_belongs_to_its_transaction(bank: Bank) -> None:
    """The key cannot be read, the value can: the transaction is complete with it."""
    chance = random.Random(8)
    bank.run(f"CREATE VIEW seen AS {WITH_LETTERS}")
    bank.run(f"CREATE MATERIALIZED VIEW kept AS {WITH_LETTERS}")
    good = bad = 0
    for n in range(30):
        bank.raise_both()
        if chance.random() < 0.4:
            bank.damage(key=chance.choice(["{broken", None, "\x00"]))
            bad += 1
        else:
            good = bank.value
        if n == 15:
            bank.log.restart()
        some = [name for name in bank.log.pending() if chance.random() < 0.6]
        if some:
            bank.log.flush(*some, most=chance.choice([1, 2, 100]))
    bank.log.flush()
    for view in ("seen", "kept"):
        until(lambda view=view: bank.run(f"SELECT * FROM {view}"), [(good, 30, bad)])
        assert bank.torn_letters(view) == []


def test_what_says_of_no_transaction_is_put_aside_while_it_is_waited_for(bank: Bank) -> None:
    lost = bank.raise_both()
    bank.damage(value="{broken")
    bank.raise_both()
    bank.log.flush()

    def waits() -> object:
        ((details,),) = bank.run(
            "SELECT details->>'waits' FROM mz_internal.mz_source_statuses WHERE name = 'l'"
        )
        return details is not None and f'for transaction "{lost}"' in details

    until(waits, True)
    # The dead letter tells what is missing.
    assert bank.run(WITH_LETTERS) == [(0, 0, 1)]
    bank.run(f"ALTER SOURCE tx SET (GIVE UP TRANSACTION '{lost}')")
    until(lambda: bank.run(WITH_LETTERS), [(2, 2, 1)])
    ((error, value),) = bank.run("SELECT error, value FROM l_dead_letters")
    assert error.startswith("Envelope error: Upsert: Value error: ") and value == b"{broken"
    rows = bank.run(f"SUBSCRIBE ({WITH_LETTERS}) AS OF EARLIEST UP TO LATEST")
    shown = {tuple(map(int, row[2:])) for row in rows if row[1] > 0}
    assert shown <= {(0, 0, 0), (0, 0, 1), (0, 1, 1), (2, 2, 1)}
