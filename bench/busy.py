"""The processor time of a program with all that it started: what a busy machine does not stretch."""

from __future__ import annotations

import psutil


def core_seconds(pid: int | None = None) -> float:
    """Seconds of a core that the process (None: this one), those below it and those of them that have ended
    have used."""
    root = psutil.Process(pid)
    total = 0.0
    for process in [root, *root.children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total
