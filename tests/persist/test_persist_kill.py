"""`kill -9` at every failpoint of `persist`, hundreds of times: nothing acknowledged is lost, nothing
doubled, old times unchanged."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from support.crash import names
from support.shards import memory_folder


def crash(rounds: int, seed: int, timeout: float) -> dict[str, int]:
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        tests = Path(__file__).parents[1]
        command = [sys.executable, "-m", "support.crash", folder, str(rounds), str(seed)]
        done = subprocess.run(
            command, cwd=tests, capture_output=True, text=True, timeout=timeout, check=False
        )
    assert done.returncode == 0, done.stderr[-4000:]
    result = json.loads(done.stdout)
    assert result["rounds"] == rounds
    kills: dict[str, int] = result["kills"]
    assert sum(kills.values()) == rounds  # as many faults as planned
    assert set(kills) == set(names())
    return kills


def test_there_are_failpoints() -> None:
    assert len(names()) >= 13


@pytest.mark.timeout(900)
def test_kill_everywhere() -> None:
    crash(rounds=117, seed=1, timeout=850)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_kill_everywhere_for_long() -> None:
    crash(rounds=5200, seed=2, timeout=3500)
