"""`kill -9` at every failpoint under concurrent writers with a ledger, and the same with breaks planted: they
must be found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

# Reached only when log entries are older than the log is kept (half an hour at least): the shards' own tests
# shorten that.
NOT_REACHED = {"persist.clean.before_delete"}


def _run(folder: Path, *arguments: str, timeout: float = 500) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "txns.txns_driver", str(folder), *arguments]
    return subprocess.run(command, cwd=TESTS, capture_output=True, text=True, timeout=timeout, check=False)


def test_killed_at_every_failpoint(tmp_path: Path) -> None:
    unreachable = [f"--unreachable={name}" for name in NOT_REACHED]
    done = _run(tmp_path, "--rounds", "100", "--seed", "7", *unreachable)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert set(summary["never_hit"]) <= NOT_REACHED
    assert sum(summary["killed"].values()) >= 50


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(10))
def test_killed_many_times(tmp_path: Path, seed: int) -> None:
    done = _run(tmp_path, "--rounds", "300", "--seed", str(seed), timeout=3600)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "planted",
    [
        "forget-unapplied",  # I4: what was acknowledged is gone
        "apply-twice",  # I3: there twice
        "half",  # a transaction in part
        "ack-early",  # acknowledged before it is durable
        "forget-lease",  # I6: times of an earlier life again
    ],
)
def test_planted_breaks_are_found(tmp_path: Path, planted: str) -> None:
    done = _run(tmp_path, "--rounds", "100", "--seed", "3", "--plant", planted)
    assert done.returncode == 3, f"{planted} was not found\n" + done.stdout + done.stderr
    assert "FOUND" in done.stdout
