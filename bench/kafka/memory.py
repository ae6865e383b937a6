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
    """Bytes. `share` counts a page that several processes have once, `resident` in each of them; `own` is
    what is no page of a file, which the system could take back at any moment."""

    share: int = 0
    resident: int = 0
    own: int = 0
    # Of the share.
    kinds: Counter[str] = field(default_factory=Counter[str])

    def told(self) -> str:
        by_kind = ", ".join(f"{kind} {size / 1e9:.2f}" for kind, size in sorted(self.kinds.items()))
        return (
            f"{self.share / 1e9:.2f} GB ({by_kind}), {self.own / 1e9:.2f} without pages of files; "
            f"shared pages in each process: {self.resident / 1e9:.2f}"
        )


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
            own, resident = max(now.own, self.peak.own), max(now.resident, self.peak.resident)
            self.peak = now if now.share > self.peak.share else self.peak
            self.peak.own, self.peak.resident = own, resident
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
            resident, share, own = _rollup(process.pid)
        except (psutil.NoSuchProcess, OSError):
            continue  # it has ended
        found.resident += resident
        found.share += share
        found.own += own
        found.kinds[kind] += share
    return found


def _rollup(pid: int) -> tuple[int, int, int]:
    sizes: dict[str, int] = {}
    with open(f"/proc/{pid}/smaps_rollup") as lines:
        for line in lines:
            name, _, rest = line.partition(":")
            if name in ("Rss", "Pss", "Pss_File"):
                sizes[name] = int(rest.split()[0]) * 1024
    share = sizes.get("Pss", 0)
    return sizes.get("Rss", 0), share, share - sizes.get("Pss_File", 0)
