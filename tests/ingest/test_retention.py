"""A source with a short history stays small, however long it runs: since follows, and what it overwrote
goes."""

from __future__ import annotations

import tempfile

from support.shards import memory_folder
from tidemill.ingest.machine import SourceMachine, TableFeed, TickTiming
from tidemill.ingest.runner import LocalRunner
from tidemill.ingest.service import SINCE_STEP_MS
from tidemill.persist.environment import Environment
from tidemill.persist.settle import upper_of
from tidemill.persist.state import FANOUT
from tidemill.reclock.remap import Remap
from tidemill.sources.definition import open_source
from tidemill.sources.generators.definition import normalise
from tidemill.types.identity import consolidate

TICK_MS = 200
RETAIN_MS = 5_000
KEYS, BATCH = 500, 100


def test_five_seconds_of_history_stay_five_seconds() -> None:
    """KEY VALUE with RETAIN HISTORY FOR '5s', for a minute of its own time. Kept whole, it would have 55,000
    updates in 300 parts."""
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        environment = Environment.open(folder)
        created = environment.oracle.write_ts()
        environment.oracle.complete(created)
        options = {"KEYS": KEYS, "BATCH SIZE": BATCH, "TICK INTERVAL": TICK_MS * 1000}
        source = open_source(normalise("KEY VALUE", options, created))
        remap = environment.create_shard("remap", source.gauge.remap_desc, since=created)
        data = environment.create_shard("data", source.outputs[0].desc, since=created)
        machine = SourceMachine(
            "u1",
            source,
            Remap(remap, source.gauge, source.start),
            [TableFeed(0, data, created)],
            TickTiming(created, TICK_MS),
            home=environment,
            clock=environment.oracle,
        )
        runner = LocalRunner(f"{folder}/state")
        ticks, most_rows, most_parts = 300, 0, 0
        for tick in range(1, ticks + 1):
            now = created + tick * TICK_MS
            if machine.bind(now) is None:
                continue
            unit = machine.unit(1, 60.0)
            (facts,) = runner.run([unit], lane="test", seconds=60.0)
            machine.commit(unit, facts)
            if tick % 5 == 0:  # once a second
                machine.retain(now, RETAIN_MS, SINCE_STEP_MS)
                environment.maintain()
                most_rows = max(most_rows, data.state.rows)
                most_parts = max(most_parts, len(data.parts), len(remap.parts))
                if machine.hydrated and tick > 100:
                    # Not more history than asked for, but for a step and what is not yet readable; and not
                    # less.
                    assert RETAIN_MS <= now - data.since <= RETAIN_MS + 2 * SINCE_STEP_MS
        window = 2 * BATCH * (RETAIN_MS + 2 * SINCE_STEP_MS) // TICK_MS
        # Twice: what waits for its tier, and what is not yet worth a consolidation.
        assert most_rows <= 2 * (KEYS + window)
        assert most_parts <= 4 * FANOUT
        # What is left is the source: each key once, at since as at the end.
        for as_of in (data.since, upper_of(data) - 1):
            with data.snapshot(as_of) as snapshot:
                table = consolidate(snapshot.read(), data.desc, time=False)
            keys = table.column("key").to_pylist()
            assert len(keys) == len(set(keys)) > KEYS * 0.9
            assert set(table.column("mz_diff").to_pylist()) == {1}
        environment.close()
