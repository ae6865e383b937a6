"""A process of readers (`reader`), driven from here; what they were sent, taken apart."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, cast

from bench.subscribe.reader import Job

_ROOT = Path(__file__).resolve().parent.parent.parent


class Wrong(Exception):
    """What came is not what was sent."""


@dataclass(frozen=True, slots=True)
class Told:
    """What one reader got."""

    bytes: int
    marks: int
    # When its statement was sent, and when each tick was there.
    asked: float
    arrivals: list[float]
    ended: str
    kept: bytes


class Crowd:
    """Readers that have all begun."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._in, self._out = cast("IO[str]", process.stdin), cast("IO[str]", process.stdout)

    def _ask(self, what: str) -> dict[str, Any]:
        self._in.write(what + "\n")
        self._in.flush()
        return json.loads(self._out.readline())

    def wait_for(self, ticks: int, seconds: float) -> bool:
        """Until every reader has so many ticks; False if that does not happen in time."""
        deadline = time.monotonic() + seconds
        while self._ask("least")["least"] < ticks:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def end(self) -> list[Told]:
        """What they got so far; then they are gone."""
        answer = self._ask("end")
        self._process.wait(60)
        return [
            Told(r["bytes"], r["marks"], r["asked"], r["arrivals"], r["ended"], bytes.fromhex(r["kept"]))
            for r in answer["readers"]
        ]


@contextmanager
def crowd(job: Job) -> Generator[Crowd]:
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.subscribe.reader", json.dumps(asdict(job))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=_ROOT,
    )
    try:
        stdout = cast("IO[str]", process.stdout)
        line = stdout.readline()
        if not line or "begun" not in json.loads(line):
            raise Wrong(f"the readers did not begin: {line.strip() or 'see above'}")
        yield Crowd(process)
    finally:
        process.kill()
        process.wait()


def messages(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """(type, body) of each whole message of the protocol."""
    at = 0
    while at + 5 <= len(data):
        (size,) = struct.unpack_from("!i", data, at + 1)
        if at + 1 + size > len(data):
            return
        yield data[at : at + 1], data[at + 5 : at + 1 + size]
        at += 1 + size


def rows(data: bytes) -> Iterator[list[str | None]]:
    """The rows among the messages, as text."""
    for kind, body in messages(data):
        if kind != b"D":
            continue
        values: list[str | None] = []
        at = 2
        for _ in range(struct.unpack_from("!h", body)[0]):
            (size,) = struct.unpack_from("!i", body, at)
            at += 4
            values.append(None if size < 0 else body[at : at + size].decode())
            at += max(size, 0)
        yield values
