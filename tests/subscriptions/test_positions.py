"""Positions of durable subscriptions: durable, never going back, many in one commit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemill.persist.environment import Environment
from tidemill.subscriptions.positions import SHARD, Position, Positions

FIRST = Position(10, True)


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[Environment]:
    environment = Environment.open(str(tmp_path))
    yield environment
    environment.close()


def test_positions_over_restarts(tmp_path: Path) -> None:
    environment = Environment.open(str(tmp_path))
    positions = Positions(environment)
    assert positions.find("u1") is None
    assert positions.acknowledge("u1", 10, FIRST).result() == FIRST  # nothing is done with yet
    assert SHARD not in environment.shard_ids()
    assert positions.acknowledge("u1", 20, FIRST).result() == Position(20)
    assert positions.acknowledge("u1", 15, FIRST).result() == Position(20)
    positions.acknowledge("u2", 30, FIRST).result()
    positions.begin("u2", Position(5, True)).result()
    positions.begin("u3", Position(40, lost="too old")).result()
    assert positions.acknowledge("u3", 50, FIRST).result() == Position(40, lost="too old")
    positions.acknowledge("u4", 60, FIRST).result()
    positions.forget("u4").result()
    positions.compacted()
    positions.stop()
    environment.close()
    environment = Environment.open(str(tmp_path))
    again = Positions(environment)
    found = {key: again.find(key) for key in again.known()}
    assert found == {"u1": Position(20), "u2": Position(5, True), "u3": Position(40, lost="too old")}
    assert again.acknowledge("u1", 21, FIRST).result() == Position(21)
    again.stop()
    environment.close()


def test_many_acknowledgements_are_few_commits(environment: Environment) -> None:
    positions = Positions(environment)
    waiting = [positions.acknowledge(f"u{n % 50}", 100 + n, FIRST) for n in range(5000)]
    for each in waiting:
        each.result()
    assert all(positions.find(f"u{n}") == Position(5050 + n) for n in range(50))
    assert positions.commits < 100
    positions.stop()


def test_a_failed_commit_is_told(environment: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    positions = Positions(environment)
    positions.acknowledge("u1", 20, FIRST).result()
    shard = environment.open_shard(SHARD)

    def fail(*_: object, **__: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as broken:
        broken.setattr(shard, "write_part", fail)
        with pytest.raises(OSError, match="no space left"):
            positions.acknowledge("u1", 30, FIRST).result()
    assert positions.find("u1") == Position(20)
    assert positions.acknowledge("u1", 25, FIRST).result() == Position(25)
    positions.stop()
