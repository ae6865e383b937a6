"""TRANSACTION METADATA under kill -9 of the server at every step of a decision about several tables: before
it is durable, when its writer does not know that it is, and when no table is bound. At every time the tables
show whole transactions: one classic, and one by key that puts bad messages aside."""

from __future__ import annotations

import time
from collections.abc import Callable

import psycopg
import pytest

from support.kafka import Kafka
from support.server import ServerProcess
from support.whole_bank import WITH_LETTERS, Bank

STEPS = ("tick.before_cut", "tick.cut_put", "tick.cut")
SECONDS = 400.0


@pytest.mark.timeout(1200)
def test_a_decision_that_a_crash_cuts_short(start_server: Callable[..., ServerProcess], kafka: Kafka) -> None:
    server = start_server()
    with psycopg.connect(server.sql_dsn, autocommit=True) as home:
        bank = Bank(home, kafka)
        bank.create_topic()
        bank.create_table("left", "DEBEZIUM UPSERT", "ON ERROR DEAD LETTER")
        bank.create_table("right")
        bank.run(f"CREATE VIEW seen AS {WITH_LETTERS}")
        bank.raise_both()
        bank.log.flush()
        reached(bank)
    bad = 0
    for step in STEPS:
        server.kill9()
        # The second decision of this life, while the transactions go on.
        server.env["TIDEMILL_FAILPOINTS"] = f"{step}=kill@2"
        server.start(wait_sql=False)
        deadline = time.monotonic() + SECONDS
        while server.returncode is None:
            assert time.monotonic() < deadline, f"the server did not die at {step}"
            for key in ("{broken", None):
                bank.raise_both()
                bank.damage(key=key)
            bad += 2
            bank.raise_both()
            bank.log.flush()
            time.sleep(0.1)
    server.env.pop("TIDEMILL_FAILPOINTS")
    server.start()
    with psycopg.connect(server.sql_dsn, autocommit=True) as bank.home:
        reached(bank)
        assert bank.run("SELECT bad FROM seen") == [(bad,)]
        assert bank.torn_letters("seen") == []


def reached(bank: Bank) -> None:
    """The tables come to hold the last values."""
    deadline = time.monotonic() + SECONDS
    while (found := bank.values()) != [(bank.value, bank.value)]:
        assert time.monotonic() < deadline, (found, bank.value)
        time.sleep(0.2)
