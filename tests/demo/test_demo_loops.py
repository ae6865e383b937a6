"""The demo's loops against a server that is made up: what holds goes on, what does not ends it."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from tidemill.cli.demo import loops
from tidemill.cli.demo.proof import NOTHING, FollowedBids
from tidemill.cli.demo.screen import DemoState

# The house after two events: the first auction, and no bid yet.
HOUSE = {
    "organizations": ["10", "10", "385", "138", "1"],
    "users": ["100", "100", "338350", "550", "2"],
    "accounts": ["10", "10", "385", "5000", "3"],
    "auctions": ["1", "1", "1", "7", "4"],
    "progress": ["1", "2", "4", "0", "6"],
}
LOT: list[str | None] = [
    "Gilded Vase",
    "Ada Jansen",
    "0",
    None,
    "2026-11-15 14:16:03.448+00",
    "1",
    "1",
    "0",
    None,
]
METRICS = {"tidemill_source_ticks_total": 3.0, "tidemill_source_lag_seconds": 0.25}


class FakeServer:
    """Answers every cut with the house, changed from the `after`th answer on."""

    def __init__(self, after: int = 10**9, past: bool = False, **changed: str) -> None:
        self.after, self.past, self.changed = after, past, changed
        self.cuts = 0
        self.time = 1000
        self.asked: list[str] = []

    def connect(self, state: DemoState | None = None) -> FakeServer:
        return self

    def query(self, sql: str) -> list[list[Any]]:
        self.asked.append(sql)
        old = " AS OF " in sql
        if sql == "BEGIN":
            self.time += 10
        at = sql.rsplit(" ", 1)[1] if old else str(self.time)
        if "everything" in sql:
            self.cuts += not old
            house = {name: [*values] for name, values in HOUSE.items()}
            if self.cuts >= self.after and old is self.past:
                for name, rows in self.changed.items():
                    house[name][0] = rows
            return [[at, name, *values] for name, values in house.items()]
        if "FROM lots" in sql:
            return [[at, *LOT]]
        if "mz_source_statuses" in sql:
            return [["running", None, 5, 2]]
        return []

    def metrics(self) -> dict[str, float]:
        return METRICS

    def close(self) -> None:
        self.asked.append("closed")


def run(server: FakeServer, reads: int, held: FollowedBids | None = None) -> DemoState:
    state, stop = DemoState(followed=held), threading.Event()
    thread = loops.guarded(lambda: loops.read_loop(server, state, stop, 3), state, stop)  # pyright: ignore[reportArgumentType]
    deadline = time.monotonic() + 180
    while state.reads < reads and not stop.is_set() and time.monotonic() < deadline:
        time.sleep(0.005)
    stop.set()
    thread.join(120)
    assert not thread.is_alive()
    return state


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.setattr(loops, "PAUSE", 0.0)


def test_what_holds_goes_on() -> None:
    server = FakeServer()
    state = run(server, 5)
    assert state.failure == "" and state.reads >= 5 and state.past_checks >= 4
    assert state.oldest > 0
    assert state.lots[0].item == "Gilded Vase" and state.lots[0].highest is None
    assert state.cut is not None and state.cut.events == 2
    # One transaction over both reads, then a read of the past; serializable, so that no read waits.
    kinds = [sql.split()[0] for sql in server.asked[:9]]
    assert kinds == ["SET", "BEGIN", "SELECT", "SELECT", "COMMIT", "BEGIN", "SELECT", "SELECT", "COMMIT"]
    assert server.asked[0] == "SET transaction_isolation = 'serializable'"
    assert server.asked[-1] == "closed"


@pytest.mark.parametrize(
    ("server", "told"),
    [
        (FakeServer(3, users="99"), "so users must have the ids 1 to 100"),
        (FakeServer(2, auctions="2"), "so auctions must have the ids 1 to 1"),
        (FakeServer(4, past=True, accounts="11"), "the past changed: it was Cut"),
    ],
)
def test_what_does_not_hold_ends_it(server: FakeServer, told: str) -> None:
    state = run(server, 200)  # which question of the past is asked again is left to chance
    assert "Violation" in state.failure and told in state.failure
    assert state.reads < 200


def test_the_subscription_is_held_against_select() -> None:
    state = run(FakeServer(), 5, FollowedBids(900, NOTHING, {}))
    assert state.failure == "" and state.live_checks == 1, "one time is asked for once"
    assert state.past_checks >= 3
    state = run(FakeServer(), 200, FollowedBids(900, NOTHING._replace(rows=1), {}))
    assert "at 900 the subscription had DemoFacts(rows=1" in state.failure


def test_how_the_source_is() -> None:
    state, stop = DemoState(), threading.Event()
    thread = loops.guarded(lambda: loops.health_loop(FakeServer(), state, stop), state, stop)  # pyright: ignore[reportArgumentType]
    deadline = time.monotonic() + 180
    while state.health.status != "running" and time.monotonic() < deadline:
        time.sleep(0.005)
    stop.set()
    thread.join(120)
    health = state.health
    assert (health.status, health.known, health.committed, health.ticks) == ("running", 5, 2, 3)
    assert (health.lag, health.visible_ms, state.failure) == (0.25, None, "")
