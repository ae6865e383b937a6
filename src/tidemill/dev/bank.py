"""Two tables to begin with: accounts, and the transfers between them.

Called by `tidemill dev` for a PostgreSQL without tables. With Debezium, the first transfer is committed when
the connector streams, so that the topics of both tables and of the transactions exist before the command says
what to type. `Transfers` commits more of them at a steady rate.
"""

from __future__ import annotations

import logging
import random
import threading
import time

import psycopg
from confluent_kafka.admin import AdminClient

from tidemill.dev.broker import Broker
from tidemill.dev.postgres import Postgres
from tidemill.dev.process import POLL_SECONDS
from tidemill.errors import Unavailable

# A snapshot of a few rows arrives about a second after the connector runs.
ARRIVAL_SECONDS = 60.0
REQUEST_SECONDS = 10.0

TABLES = ("accounts", "transfers")

# A lost session is opened again after this.
RETRY_SECONDS = 1.0

# Every transfer leaves the sum of the balances as it is. REPLICA IDENTITY FULL: the log has whole old rows,
# as sources require.
CREATE = """
CREATE TABLE accounts (id int PRIMARY KEY, owner text NOT NULL, balance bigint NOT NULL);
CREATE TABLE transfers (
  id int PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
  from_account int NOT NULL REFERENCES accounts, to_account int NOT NULL REFERENCES accounts,
  amount bigint NOT NULL
);
ALTER TABLE accounts REPLICA IDENTITY FULL;
ALTER TABLE transfers REPLICA IDENTITY FULL;
INSERT INTO accounts VALUES (1, 'ada', 100), (2, 'bob', 100), (3, 'cid', 100);
"""

# One transaction: statements sent together are one.
TRANSFER = """
UPDATE accounts SET balance = balance - 10 WHERE id = 1;
UPDATE accounts SET balance = balance + 10 WHERE id = 2;
INSERT INTO transfers (from_account, to_account, amount) VALUES (1, 2, 10);
"""

# A statement whose effect a person then sees in Tidemill.
CHANGE = "UPDATE accounts SET balance = balance + 5 WHERE id = 3;"

# One transfer between two accounts, chosen by the parameters: a statement is a transaction.
STEADY = """
WITH payer AS (UPDATE accounts SET balance = balance - %(amount)s WHERE id = %(payer)s),
     payee AS (UPDATE accounts SET balance = balance + %(amount)s WHERE id = %(payee)s)
INSERT INTO transfers (from_account, to_account, amount) VALUES (%(payer)s, %(payee)s, %(amount)s)
"""
MOST_AMOUNT = 20

log = logging.getLogger(__name__)


def create_tables(postgres: Postgres) -> bool:
    """Create the tables, unless the schema has any. Returns whether it did."""
    with psycopg.connect(postgres.dsn, autocommit=True) as sql:
        if sql.execute("SELECT FROM pg_tables WHERE schemaname = 'public'").rowcount:
            return False
        sql.execute(CREATE)
    return True


def transfer_once(postgres: Postgres, broker: Broker, prefix: str) -> None:
    """Wait for the snapshot, commit a transfer, and wait until all topics exist. Their names begin with
    `prefix`."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    # What is committed after the first row of the snapshot has arrived is not in the snapshot.
    _wait_for(admin, f"{prefix}.public.accounts")
    with psycopg.connect(postgres.dsn, autocommit=True) as sql:
        sql.execute(TRANSFER)
    for topic in (f"{prefix}.public.transfers", f"{prefix}.transaction"):
        _wait_for(admin, topic)


def _wait_for(admin: AdminClient, topic: str) -> None:
    deadline = time.monotonic() + ARRIVAL_SECONDS
    while topic not in admin.list_topics(timeout=REQUEST_SECONDS).topics:
        if time.monotonic() > deadline:
            raise Unavailable(f"Debezium does not write the topic {topic}")
        time.sleep(POLL_SECONDS)


class Transfers(threading.Thread):
    """Commits `rate` transfers a second between accounts 1, 2 and 3, until `close`. It cannot keep up with
    a rate that is higher than one session can commit, and goes on after the server was away."""

    def __init__(self, postgres: Postgres, rate: float) -> None:
        super().__init__(name="transfers", daemon=True)
        self._dsn = postgres.dsn
        self._every = 1 / rate
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.is_set():
            try:
                self._session()
            except psycopg.Error as e:
                log.debug("a transfer failed: %s", e)
                self._ended.wait(RETRY_SECONDS)

    def _session(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as sql:
            due = time.monotonic()
            while not self._ended.wait(max(0.0, due - time.monotonic())):
                payer, payee = random.sample((1, 2, 3), 2)
                amount = random.randint(1, MOST_AMOUNT)
                sql.execute(STEADY, {"payer": payer, "payee": payee, "amount": amount})
                # What was missed is not made up for.
                due = max(due + self._every, time.monotonic() - self._every)

    def close(self) -> None:
        self._ended.set()
        if self.is_alive():
            self.join(REQUEST_SECONDS)
