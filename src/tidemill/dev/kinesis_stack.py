"""A Kinesis to try things with: a stream of orders, and a load on it.

Called by `tidemill dev kinesis`.
"""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from pathlib import Path

from tidemill.dev.jars import Progress
from tidemill.dev.kinesis import (
    ACCESS_KEY,
    SECRET_KEY,
    KinesisLocal,
    create_stream,
    fetch_kinesis,
    put_records,
)
from tidemill.dev.process import LocalProgram
from tidemill.dev.stack import Stack, addressed, indented
from tidemill.errors import TidemillError
from tidemill.sources.kinesis.client import KinesisClient

log = logging.getLogger(__name__)

STREAM = "orders"
SHARDS = 2
ORDERS = 100
STATES = ("new", "paid", "sent")
RETRY_SECONDS, CLOSE_SECONDS = 1.0, 10.0
_FORMAT = "FORMAT JSON INCLUDE KEY AS id ENVELOPE UPSERT"


class KinesisStack(Stack):
    """`folder` is kept between starts. `load` is the rate of records per second; none if it is 0."""

    def __init__(self, folder: Path, port: int, *, load: float) -> None:
        super().__init__([port])
        self.kinesis = KinesisLocal(folder / "kinesis", port=port)
        self._load = load
        self._orders: Orders | None = None

    @property
    def programs(self) -> list[LocalProgram]:
        return [self.kinesis]

    def _fetch(self, tell: Progress) -> None:
        fetch_kinesis(tell)

    def _prepare(self, tell: Progress) -> None:
        client = self.kinesis.client()
        if create_stream(client, STREAM, SHARDS):
            put_records(client, STREAM, [order(n, "new") for n in range(1, 4)])
        if self._load:
            self._orders = Orders(client, self._load)
            self._orders.start()

    def stop(self) -> None:
        if self._orders is not None:
            self._orders.close()
            self._orders = None
        super().stop()

    def introduction(self) -> list[str]:
        return [
            *addressed({"Kinesis": self.kinesis.options["endpoint"]}),
            "",
            f"It has the stream {STREAM} with {SHARDS} shards; records per second: {self._load:g} (--load).",
            "Each is the state of an order as JSON; its partition key is the number of the order.",
            "",
            "In Tidemill:",
            "",
            *indented(self.statements()),
        ]

    def statements(self) -> list[str]:
        """The statements that make the stream a live table, and one that shows it."""
        place = f"ENDPOINT '{self.kinesis.options['endpoint']}', ACCESS KEY ID '{ACCESS_KEY}'"
        return [
            f"CREATE SECRET aws_secret AS '{SECRET_KEY}';",
            f"CREATE CONNECTION aws TO AWS ({place}, SECRET ACCESS KEY = SECRET aws_secret);",
            f"CREATE SOURCE orders FROM KINESIS CONNECTION aws (STREAM '{STREAM}')\n  {_FORMAT};",
            "SUBSCRIBE (SELECT id, data->>'state' AS state FROM orders);",
        ]


def order(number: int, state: str) -> tuple[str, bytes]:
    return str(number), json.dumps({"id": number, "state": state}).encode()


class Orders(threading.Thread):
    """Puts `rate` records a second, until `close`. It goes on after the server was away."""

    def __init__(self, client: KinesisClient, rate: float) -> None:
        super().__init__(name="orders", daemon=True)
        self._client = client
        self._every = 1 / rate
        self._ended = threading.Event()

    def run(self) -> None:
        due = time.monotonic()
        while not self._ended.wait(max(0.0, due - time.monotonic())):
            try:
                record = order(random.randint(1, ORDERS), random.choice(STATES))
                put_records(self._client, STREAM, [record])
            except TidemillError as e:
                log.debug("a record was not put: %s", e)
                self._ended.wait(RETRY_SECONDS)
            # What was missed is not made up for.
            due = max(due + self._every, time.monotonic() - self._every)

    def close(self) -> None:
        self._ended.set()
        if self.is_alive():
            self.join(CLOSE_SECONDS)
