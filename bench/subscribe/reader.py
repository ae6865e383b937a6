"""Many readers of one server in a process of their own, so cheap that they hardly take part in the load.

`python -m bench.subscribe.reader` connects as often as it is told over the PostgreSQL protocol, runs one
statement on each connection, and then only counts: each row that is meant has one `~` in it, and a reader has
all of a tick when it has so many of them. The first readers also keep what they are sent, for whoever checks
it. The job comes as JSON on the command line, answers go as JSON lines to standard output. On standard input
`least` asks how many ticks every reader has, `end` what each got.
"""

from __future__ import annotations

import json
import resource
import selectors
import socket
import struct
import sys
import time
from dataclasses import dataclass, field
from typing import Any

MARK = b"~"
# Connections that log in and begin at one time: the server reads a snapshot for each.
AT_ONCE = 50
RECEIVE_BYTES = 1 << 20


@dataclass
class Job:
    port: int
    readers: int
    statement: str
    # Rows of one tick.
    changes: int
    user: str = "materialize"
    database: str = "materialize"
    # Readers that keep what they are sent.
    kept: int = 0
    # The message by which the server says that the statement has begun.
    begun: str = "T"
    # Do not read at all once the statement has begun.
    deaf: bool = False


@dataclass
class Reader:
    """One connection."""

    sock: socket.socket
    number: int
    statement: bytes
    begun_tag: int
    keeps: bool
    # Bytes before the statement has begun, and then those that are kept.
    buffer: bytearray = field(default_factory=bytearray)
    # When the statement was sent; 0 before.
    asked: float = 0.0
    begun: bool = False
    bytes: int = 0
    marks: int = 0
    # When each tick was there, by the monotonic clock, which all processes share.
    arrivals: list[float] = field(default_factory=list)
    ended: str = ""

    def hello(self, job: Job) -> None:
        text = f"user\0{job.user}\0database\0{job.database}\0\0".encode()
        self.sock.sendall(struct.pack("!ii", 8 + len(text), 196608) + text)

    def take(self, data: bytes, changes: int) -> None:
        if not self.begun:
            self.buffer += data
            self._begin()
            if not self.begun:
                return
            data = bytes(self.buffer)
            if not self.keeps:
                self.buffer.clear()
        elif self.keeps:
            self.buffer += data
        self.bytes += len(data)
        self.marks += data.count(MARK)
        while self.marks >= changes * (len(self.arrivals) + 1):
            self.arrivals.append(time.monotonic())

    def _begin(self) -> None:
        """Ask when the server is ready; begun with the message that says so."""
        at = 0
        while at + 5 <= len(self.buffer):
            tag, (size,) = self.buffer[at], struct.unpack_from("!i", self.buffer, at + 1)
            if at + 1 + size > len(self.buffer):
                break
            if tag == ord("E"):
                raise RuntimeError(bytes(self.buffer[at : at + 1 + size]).decode(errors="replace"))
            if tag == self.begun_tag and self.asked:
                self.begun = True
                break
            if tag == ord("Z") and not self.asked:
                self.asked = time.monotonic()
                self.sock.sendall(b"Q" + struct.pack("!i", 5 + len(self.statement)) + self.statement + b"\0")
            at += 1 + size
        del self.buffer[:at]


def serve(job: Job) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    selector = selectors.DefaultSelector()
    selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
    readers: list[Reader] = []
    begun = 0
    while True:
        while len(readers) < job.readers and len(readers) - begun < AT_ONCE:
            sock = socket.create_connection(("127.0.0.1", job.port), 60)
            keeps = len(readers) < job.kept
            reader = Reader(sock, len(readers), job.statement.encode(), ord(job.begun), keeps)
            reader.hello(job)
            sock.setblocking(False)
            readers.append(reader)
            selector.register(sock, selectors.EVENT_READ, reader)
        for key, _ in selector.select():
            if key.data is None:
                if sys.stdin.readline().strip() != "least":
                    _say({"readers": [_told(reader) for reader in readers]})
                    return
                _say({"least": min(len(reader.arrivals) for reader in readers)})
                continue
            reader = key.data
            before = reader.begun
            try:
                data = reader.sock.recv(RECEIVE_BYTES)
            except BlockingIOError:
                continue
            except OSError as e:
                data = b""
                reader.ended = str(e)
            if not data:
                reader.ended = reader.ended or "closed"
                selector.unregister(reader.sock)
                continue
            reader.take(data, job.changes)
            if reader.begun and not before:
                begun += 1
                if job.deaf:
                    selector.unregister(reader.sock)
                if begun == job.readers:
                    _say({"begun": begun})


def _told(reader: Reader) -> dict[str, Any]:
    return {
        "bytes": reader.bytes,
        "marks": reader.marks,
        "asked": reader.asked,
        "arrivals": reader.arrivals,
        "ended": reader.ended,
        "kept": reader.buffer.hex() if reader.keeps else "",
    }


def _say(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    serve(Job(**json.loads(sys.argv[1])))
