"""However the connection is cut, and though the server is killed: no change is missing, none comes twice, and
no time is seen in half."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from pathlib import Path

import pytest
from client_proxy import Proxy
from client_world import KS, Background, Update, Writer, name, truth, url, wait_for

import tidemill
from support.server import ServerProcess
from tidemill.client import (
    Batch,
    Changes,
    ColumnsChanged,
    GaveUp,
    HistoryGone,
    LiveTable,
    Retry,
    Subscription,
)

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

# As good as at once, and never tired of it: what is tested is where it goes on, not how long it waits.
AT_ONCE = Retry(first=0.001, longest=0.02, give_up_after=None)
CUTS = 100
# They take five seconds on an idle machine, and a minute on a very busy one.
CUT_SECONDS = 400.0


def budgets(seed: int, count: int) -> list[int]:
    """Bytes until the cut: within the greetings (a few hundred), in the first rows, and long after."""
    dice = random.Random(seed)
    ranges = [(1, 900), (900, 2000), (2000, 8000)]
    return [dice.randrange(*dice.choice(ranges)) for _ in range(count)]


def told(batch: Batch) -> list[Update]:
    return [(batch.time, row.pop("mz_diff"), tuple(row.values())) for row in batch.rows()]


def begun(changes: Subscription) -> int:
    """The time of the snapshot, in which nothing is: nobody writes yet."""
    first = next(changes)
    assert first.snapshot and len(first) == 0
    return first.time


def until_the_last(changes: Subscription) -> list[Update]:
    """All changes after the snapshot, up to the rows that the writer writes last."""
    found: list[Update] = []
    for batch in changes:
        assert sum(diff * row[1] for _, diff, row in told(batch)) == 0, "half a transaction"
        found += told(batch)
        if found[-1][2][0] == -1:
            return found
    raise AssertionError("it ended by itself")


def assert_the_same(server: ServerProcess, table: str, start: int, found: list[Update]) -> None:
    wanted = truth(server, table, start, found[-1][0] + 1)
    assert [u[0] for u in found] == sorted(u[0] for u in found)
    assert Counter(found) == Counter(wanted)


@pytest.fixture
def table(plain_server: ServerProcess) -> str:
    made = name()
    with tidemill.connect(url(plain_server)) as db:
        db.execute(f"CREATE TABLE {made} (n int, k int)")
    return made


def test_a_hundred_cuts_of_a_subscription(plain_server: ServerProcess, table: str) -> None:
    with (
        Proxy(lambda: plain_server.sql_port, [10**9, *budgets(1, CUTS)]) as proxy,
        tidemill.connect(proxy.url, retry=AT_ONCE) as db,
        db.subscribe(table) as changes,
    ):
        start = begun(changes)
        reader = Background(lambda: until_the_last(changes))
        writer = Writer(plain_server, table).start()
        wait_for(lambda: proxy.cuts == CUTS or not reader.alive, CUT_SECONDS)
        writer.stop()
        found = reader.result()
        assert proxy.cuts == CUTS
        assert changes.reconnects > CUTS // 3, "the others were cut before they were connections"
    assert_the_same(plain_server, table, start, found)
    assert {row[0] for _, _, row in found} == set(writer.acknowledged)


def test_a_hundred_cuts_of_a_live_table(plain_server: ServerProcess, table: str) -> None:
    sums: list[int] = []

    def on_update(live: LiveTable, changes: Changes) -> None:
        assert not changes.renewed
        sums.append(sum(row["k"] for row in changes.added.rows()))
        if live.get(-1, 8) is not None:
            live.close()

    with (
        Proxy(lambda: plain_server.sql_port, [10**9, *budgets(2, CUTS)]) as proxy,
        tidemill.connect(proxy.url, retry=AT_ONCE) as db,
    ):
        live = db.live_table(table, key=["n", "k"], on_update=on_update).start()
        assert live.wait(60) and len(live) == 0
        writer = Writer(plain_server, table).start()
        wait_for(lambda: proxy.cuts == CUTS or not live.running, CUT_SECONDS)
        writer.stop()
        live.join(60)
        assert proxy.cuts == CUTS and not live.running
    wanted = [(n, k) for n in writer.acknowledged for k in KS]
    assert Counter((row["n"], row["k"]) for row in live.rows()) == Counter(wanted)
    assert set(sums) == {0}, "half a transaction was seen"


def test_cuts_under_asyncio(plain_server: ServerProcess, table: str) -> None:
    started = threading.Event()

    async def main(proxy: Proxy) -> tuple[int, list[Update]]:
        async with await tidemill.connect_async(proxy.url, retry=AT_ONCE) as db:
            changes = await db.subscribe(table)
            first = await anext(changes)
            assert first.snapshot and len(first) == 0
            started.set()
            found: list[Update] = []
            async for batch in changes:
                found += told(batch)
                if found[-1][2][0] == -1:
                    break
            return first.time, found

    with Proxy(lambda: plain_server.sql_port, [10**9, *budgets(3, 30)]) as proxy:
        reader = Background(lambda: asyncio.run(main(proxy)))
        assert started.wait(60)
        writer = Writer(plain_server, table).start()
        wait_for(lambda: proxy.cuts == 30 or not reader.alive, CUT_SECONDS)
        writer.stop()
        start, found = reader.result()
        assert proxy.cuts == 30
    assert_the_same(plain_server, table, start, found)


def kills(folder: Path, count: int) -> None:
    """A server that is killed `count` times while one writes, two read, and all come back."""
    server = ServerProcess(folder / "data")
    server.spark = False
    server.start()
    table = name()
    try:
        with (
            Proxy(lambda: server.sql_port) as proxy,
            tidemill.connect(proxy.url, retry=AT_ONCE) as db,
        ):
            db.execute(f"CREATE TABLE {table} (n int, k int)")
            changes = db.subscribe(table)
            start = begun(changes)
            reader = Background(lambda: until_the_last(changes))
            live = db.live_table(table, key=["n", "k"]).start()
            assert live.wait(60)
            writer = Writer(server, table).start()
            for _ in range(count):
                seen = len(writer.acknowledged)
                wait_for(lambda seen=seen: len(writer.acknowledged) > seen + 20)
                server.kill9()
                server.start()
            writer.stop()
            found = reader.result()
            wait_for(lambda: live.get(-1, 8) is not None)
            assert changes.reconnects >= count and live.reconnects >= count
            live.close()
            assert_the_same(server, table, start, found)
            # What was acknowledged is there; what was not, once or not at all.
            seen_rows = Counter(row for _, _, row in found)
            assert set(seen_rows.values()) == {1}
            assert set(writer.acknowledged) <= {n for n, _ in seen_rows}
            assert Counter((row["n"], row["k"]) for row in live.rows()) == seen_rows
    finally:
        server.close()


def test_the_server_is_killed(tmp_path: Path) -> None:
    kills(tmp_path, 2)


@pytest.mark.chaos
@pytest.mark.parametrize("number", range(4))
def test_the_server_is_killed_many_times(tmp_path: Path, number: int) -> None:
    """20 times, five in each data directory."""
    kills(tmp_path, 5)


def test_history_that_is_gone(plain_server: ServerProcess) -> None:
    """Away for longer than history is kept: a subscription says so, a live table tells the difference."""
    table = name()
    with (
        tidemill.connect(url(plain_server)) as direct,
        Proxy(lambda: plain_server.sql_port) as proxy,
        tidemill.connect(proxy.url, retry=AT_ONCE) as db,
    ):
        direct.execute(f"CREATE TABLE {table} (n int, k int) WITH (RETAIN HISTORY FOR '1s')")
        direct.execute(f"INSERT INTO {table} VALUES (1, 1)")
        said: list[Changes] = []
        live = db.live_table(table, key=["n"], on_update=lambda _, changes: said.append(changes)).start()
        changes = db.subscribe(table)
        assert live.wait(60) and len(next(changes)) == 1
        proxy.away = True
        proxy.cut_all()
        wait_for(lambda: live.trouble is not None)
        last = max(live.time or 0, changes.time or 0)
        direct.execute(f"INSERT INTO {table} VALUES (2, 2)")

        def gone() -> bool:
            try:
                next(direct.subscribe(table, snapshot=False, as_of=last, progress=True))
            except HistoryGone:
                return True
            return False

        wait_for(gone)
        proxy.away = False
        with pytest.raises(HistoryGone, match="cannot go on from") as e:
            next(changes)
        assert "live_table" in str(e.value)
        wait_for(lambda: len(live) == 2)
        assert live.trouble is None
        live.close()
        live.join(60)
        assert [c.renewed for c in said] == [True]
        assert said[0].inserted.rows() == [{"n": 2, "k": 2}] and len(said[0]) == 1


def test_it_gives_up(plain_server: ServerProcess, table: str) -> None:
    soon = Retry(first=0.001, longest=0.01, give_up_after=0.05)
    with (
        Proxy(lambda: plain_server.sql_port) as proxy,
        tidemill.connect(proxy.url, retry=soon) as db,
        db.subscribe(table) as changes,
    ):
        next(changes)
        proxy.away = True
        proxy.cut_all()
        with pytest.raises(GaveUp, match=r"no connection for 0\.05 seconds") as e:
            next(changes)
        assert e.value.__cause__ is not None


def test_other_columns_after_a_cut(plain_server: ServerProcess, table: str) -> None:
    with (
        tidemill.connect(url(plain_server)) as direct,
        Proxy(lambda: plain_server.sql_port) as proxy,
        tidemill.connect(proxy.url, retry=AT_ONCE) as db,
        db.live_table(table) as live,
    ):
        rounds = iter(live)
        assert next(rounds).snapshot
        proxy.away = True
        proxy.cut_all()
        direct.execute(f"ALTER TABLE {table} ADD COLUMN more text")
        proxy.away = False
        with pytest.raises(ColumnsChanged, match="not those of before"):
            next(rounds)


def test_statements_after_a_cut(plain_server: ServerProcess) -> None:
    with Proxy(lambda: plain_server.sql_port) as proxy, tidemill.connect(proxy.url) as db:
        assert db.execute("SELECT 1") == "SELECT 1"
        proxy.cut_all()
        with pytest.raises(tidemill.client.ConnectionLost):
            db.execute("SELECT 1")
        assert db.execute("SELECT 1") == "SELECT 1"
