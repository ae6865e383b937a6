"""Kafka: catching up with a topic, ticks, freshness, hydration and memory, against a real broker; peers
beside us.

The broker is that of `tidemill dev kafka`, our side a real server process that is spoken to over SQL. The
load, and the fold that every result is checked against, are in `bench.kafka.load`; peers in `bench.peers`,
each installed when it is first asked for. Parts are chosen with `--only`.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from bench.kafka import catch_up, changes, decode, fresh, large, transactions, upstream
from bench.kafka.load import Wrong
from bench.ours import Stalled
from bench.report import Figure, print_table
from support.server import ServerError
from tidemill.dev.broker import Broker

# What each part measures; in this order.
PARTS = {
    "decode": "decoding alone",
    "ceiling": "librdkafka, a JSON parser and a hash map, in Rust",
    "catch-up": "ours: 2M upserts over 500k keys",
    "flink": "the same: Flink -> Paimon",
    "delta": "the same: Spark + Delta MERGE",
    "large": "ours: the same with 10M keys there",
    "tick": "1,000 changed keys at 10k, 1M and 10M keys",
    "hydration": "10M keys without the cache",
    "memory": "10M keys, and a topic twice as long",
    "changes": "ENVELOPE DEBEZIUM beside DEBEZIUM UPSERT, 2M changes",
    "transactions": "TRANSACTION METADATA beside ENVELOPE DEBEZIUM",
    "positions": "the state of ENVELOPE DEBEZIUM at 100k, 1M and 10M keys",
    "upstream": "a commit in PostgreSQL to visible, through Debezium",
    "freshness": "produced to readable at 10k msg/s",
    "ten": "ten sources of 1k msg/s",
}
# Enough for the page cache to do the work, and not for the broker to be what is measured.
BROKER_HEAP_MB = 1024


@contextmanager
def broker() -> Generator[str]:
    """A broker of our own; where it listens."""
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-broker-") as folder:
        started = Broker(Path(folder), heap_mb=BROKER_HEAP_MB)
        started.start()
        try:
            yield started.bootstrap
        finally:
            started.stop()


def measure(*, quick: bool = False, only: Collection[str] = ()) -> list[Figure]:
    chosen = set(only) or set(PARTS)
    unknown = chosen - set(PARTS)
    if unknown:
        raise SystemExit(f"no part named {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    figures: list[Figure] = []

    def take(names: Collection[str], run: Callable[[], list[Figure]]) -> None:
        """Its table at once: a run of all parts takes an hour, and what came first should not get lost."""
        if not chosen & set(names):
            return
        began = time.monotonic()
        told = ", ".join(name for name in names if name in chosen)
        try:
            found = run()
        except (Wrong, Stalled, ServerError, psycopg.Error) as e:
            # The other parts go on.
            found = [
                Figure(
                    told,
                    f"FAILED: {str(e).strip() or type(e).__name__}",
                    "runs, with the right result",
                    False,
                )
            ]
        print(f"  {told}: {time.monotonic() - began:.0f} s")
        print_table(found)
        figures.extend(found)

    take(["decode"], lambda: decode.measure(quick=quick))
    if chosen == {"decode"}:
        return figures
    with broker() as bootstrap:
        race = ["ceiling", "catch-up", "flink", "delta"]
        take(race, lambda: catch_up.measure(bootstrap, chosen, quick=quick))
        held = ["large", "tick", "hydration", "memory"]
        take(held, lambda: large.measure(bootstrap, chosen, quick=quick))
        take(["changes"], lambda: changes.measure(bootstrap, quick=quick))
        take(["transactions"], lambda: transactions.measure(bootstrap, quick=quick))
        take(["positions"], lambda: changes.sizes(bootstrap, quick=quick))
        take(["upstream"], lambda: upstream.measure(bootstrap, quick=quick))
        take(["freshness"], lambda: fresh.steady(bootstrap, quick=quick))
        take(["ten"], lambda: fresh.ten(bootstrap, quick=quick))
    return figures
