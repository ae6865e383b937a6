"""Catalog changes that bring rows along, killed at every step: `catalog_crash.py` tells how."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent / "catalog_crash.py"


def test_killed_at_every_step(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path)], capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr[-4000:]
    kills = json.loads(done.stdout)
    # Before anything, with the rows durable and nothing named, at each of the log entries, and behind them.
    steps = {"catalog.before_put", "catalog.put", "persist.entry.linked", "persist.part.written"}
    assert steps | {"persist.create.after_entry0"} <= kills["create"].keys()
    assert steps | {"catalog.widened"} <= kills["widen"].keys()
    assert kills["create"]["persist.entry.linked"] >= 3  # the new shard's, its rows', the catalog's
    assert kills["widen"]["persist.entry.linked"] >= 2  # the catalog's, the shard's
    assert "catalog.widened" in kills["widen_only"]
    assert kills["secrets"]["secrets.written"] == 2
