"""How much memory a program and all that it started hold at most, by kind of process."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from types import TracebackType

import psutil

SAMPLE_SECONDS = 0.5


@dataclass(slots=True)
class Memory:
    """Bytes. `resident` counts a page of a mapped file once for every process that has it; `share` counts it
    once altogether."""

    resident: int = 0
    share: int = 0
    kinds: Counter[str] = field(default_factory=Counter[str])

    def told(self) -> str:
        by_kind = ", ".join(f"{kind} {size / 1e9:.2f}" for kind, size in sorted(self.kinds.items()))
        return f"{self.resident / 1e9:.2f} GB ({by_kind}); mapped files once: {self.share / 1e9:.2f} GB"


class Watch:
    """`with Watch(pid) as watch: ...; watch.peak`: the largest sum that was seen while the block ran."""

    def __init__(self, pid: int) -> None:
        self.peak = Memory()
        self._root = psutil.Process(pid)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bench-memory", daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            now = measure(self._root)
            share = max(now.share, self.peak.share)
            self.peak = now if now.resident > self.peak.resident else self.peak
            self.peak.share = share
            if self._done.wait(SAMPLE_SECONDS):
                return


def measure(root: psutil.Process) -> Memory:
    """Of `root` (driver) and its children: JVMs and workers."""
    found = Memory()
    try:
        processes = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return found
    for process in processes:
        try:
            kind = "driver" if process == root else "JVM" if "java" in process.name() else "workers"
            resident, share = _rollup(process.pid)
        except (psutil.NoSuchProcess, OSError):
            continue  # it has ended
        found.resident += resident
        found.share += share
        found.kinds[kind] += resident
    return found


def _rollup(pid: int) -> tuple[int, int]:
    sizes: dict[str, int] = {}
    with open(f"/proc/{pid}/smaps_rollup") as lines:
        for line in lines:
            name, _, rest = line.partition(":")
            if name in ("Rss", "Pss"):
                sizes[name] = int(rest.split()[0]) * 1024
    return sizes.get("Rss", 0), sizes.get("Pss", 0)
