"""What the doors count: statements, errors, bytes, connections, and the event loop's lag."""

from __future__ import annotations

import asyncio
import time

import pgframes as f
from prometheus_client import REGISTRY
from tablets import Tablets
from wireserver import Served

from tidemill.server import loop_lag
from tidemill.server.loop_lag import LoopLag


def value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


def test_statements_errors_bytes_and_connections_are_counted() -> None:
    watched = [
        ("tidemill_statements_total", {"verb": "SELECT"}),
        ("tidemill_statement_seconds_count", {"verb": "SELECT"}),
        ("tidemill_pgwire_errors_total", {"sqlstate": "42601"}),
        ("tidemill_pgwire_connections_accepted_total", {}),
    ]
    before = [value(name, **labels) for name, labels in watched]
    sent, received = value("tidemill_pgwire_sent_bytes_total"), value("tidemill_pgwire_received_bytes_total")
    with Served(Tablets()) as served, served.raw() as c:
        c.ask(f.query("select 1"))
        c.ask(f.query("WRONG"))
        assert value("tidemill_pgwire_connections") == 1
    after = [value(name, **labels) for name, labels in watched]
    assert [a - b for a, b in zip(after, before, strict=True)] == [1, 1, 1, 1]
    assert value("tidemill_pgwire_sent_bytes_total") - sent > 100
    assert value("tidemill_pgwire_received_bytes_total") - received == len(
        f.startup() + f.query("select 1") + f.query("WRONG")
    )


def test_a_blocked_loop_shows() -> None:
    async def run() -> float:
        lag = LoopLag()
        lag.start()
        await asyncio.sleep(loop_lag.INTERVAL * 1.5)
        # What no code of the server may do.
        time.sleep(loop_lag.INTERVAL * 3)
        await asyncio.sleep(0.01)
        lag.stop()
        return lag.worst

    before = value("tidemill_event_loop_lag_seconds_count")
    assert asyncio.run(run()) > loop_lag.INTERVAL
    assert value("tidemill_event_loop_lag_seconds_count") - before >= 2


def test_encoding_a_large_result_does_not_block_the_loop() -> None:
    """While one client gets millions of rows another is answered at once."""
    with Served(Tablets()) as served, served.raw() as big, served.raw() as small:
        big.send(f.query("select wide(80)"))
        big.socket.settimeout(120)
        waits: list[float] = []
        for _ in range(20):
            started = time.perf_counter()
            small.ask(f.query("select 1"))
            waits.append(time.perf_counter() - started)
            # Take what has come, so that the server goes on.
            big.socket.recv(1 << 20)
        # A tenth of a millisecond each; all at once it would be seconds.
        assert sorted(waits)[10] < 1.0
