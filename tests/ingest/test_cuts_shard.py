"""The decisions about the tables of a transaction topic, on the disk: each is there or not, whatever fails on
the way; and they take a bounded place, however many there were."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from tidemill import failpoints
from tidemill.catalog.sidecars import FACTS_DESC
from tidemill.failpoints import FailpointError
from tidemill.ingest.transactions.cuts_shard import CutFacts, CutsShard, TableCut
from tidemill.persist.environment import Environment
from tidemill.persist.settings import Ages, Settings
from tidemill.persist.shard import Shard
from tidemill.reclock.transactions.announced import Finished
from tidemill.sources.offsets import Offsets

SHARD = "u1-1-remap-cuts-1"
# Decisions of five minutes, and how often maintenance comes by.
TICKS, ROUND = 300, 10


def facts(n: int) -> CutFacts:
    finished = Finished(2 * n, ("", n), {"": n})
    return CutFacts(finished, {table: TableCut(Offsets({0: n, 1: n}), True) for table in ("u2", "u3", "u4")})


Opening = Callable[[], tuple[Environment, CutsShard]]


@pytest.fixture
def opening(tmp_path: Path) -> Iterator[Opening]:
    opened: list[Environment] = []

    def open_() -> tuple[Environment, CutsShard]:
        if opened:
            opened.pop().close()
        settings = Settings(checkpoint_every=20, clean_after_seconds=0)
        environment = Environment.open(str(tmp_path / "data"), settings=settings)
        opened.append(environment)
        if SHARD not in environment.shard_ids():
            # What was removed is not kept for readers of other programs.
            ages = Ages(log_keep_seconds=0, removed_keep_seconds=0, sweep_slack_seconds=0)
            Shard.create(
                environment.blobs,
                SHARD,
                FACTS_DESC,
                epoch=environment.epoch,
                upper=environment.start,
                ages=ages,
            )
        return environment, CutsShard(environment, SHARD, 0)

    yield open_
    failpoints.arm("")
    opened.pop().close()


@pytest.mark.parametrize(
    ("failpoint", "decided"), [("tick.before_cut", False), ("tick.cut_put", True), ("tick.cut", True)]
)
def test_a_decision_is_there_or_not(opening: Opening, failpoint: str, decided: bool) -> None:
    _, shard = opening()
    first = shard.upper + 10
    shard.decide(facts(1), first)
    failpoints.arm(f"{failpoint}=error")
    # An append whose outcome is not known is settled by looking.
    with nullcontext() if failpoint == "tick.cut_put" else pytest.raises(FailpointError):
        shard.decide(facts(2), first + 10)
    failpoints.arm("")
    _, again = opening()
    assert again.latest == facts(2 if decided else 1)
    times = [first, first + 10] if decided else [first]
    assert {table: [d.time for d in queue] for table, queue in again.decisions.items()} == dict.fromkeys(
        ("u2", "u3", "u4"), times
    )
    # No later decision can be below one that another server may have seen.
    assert again.upper > times[-1]


def test_what_is_kept_is_bounded(opening: Opening, tmp_path: Path) -> None:
    folder = tmp_path / "data" / "shards" / SHARD
    environment, shard = opening()
    (file,) = [each for each in environment.open_shards() if each.id == SHARD]
    start, parts, sizes = shard.upper, [0], [0]
    for n in range(1, TICKS + 1):
        shard.decide(facts(n), start + 1000 * n)
        # The tables have bound all but the last.
        shard.allow_compaction(start + 1000 * (n - 1), step=60_000)
        if n % ROUND == 0:
            environment.maintain()
            parts.append(len(file.parts))
            sizes.append(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()))
    assert max(parts) < 100
    # The last half of the time adds nothing on the disk.
    half = len(sizes) // 2
    assert max(sizes[half:]) < 1.2 * max(sizes[:half]), sizes
    with file.snapshot(shard.upper - 1, readable=shard.upper) as snapshot:
        rows = sum(snapshot.read_part(part).num_rows for part in snapshot.parts)
    # Of three minutes: eight rows a second.
    assert rows < 8 * 180
    _, again = opening()
    assert again.latest == facts(TICKS)
