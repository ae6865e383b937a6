"""What resting costs: two thousand idle connections, and a server that nobody talks to."""

from __future__ import annotations

import socket
import struct
import time

import psutil

from bench.report import Figure
from bench.serving import serving


def _login(port: int) -> socket.socket:
    """A session without a client library: the client's memory is not what is measured."""
    s = socket.create_connection(("127.0.0.1", port))
    body = struct.pack("!i", 196608) + b"user\0materialize\0database\0materialize\0\0"
    s.sendall(struct.pack("!i", len(body) + 4) + body)
    got = b""
    while not got.endswith(b"Z\0\0\0\5I"):
        more = s.recv(4096)
        if not more:
            raise ConnectionError(got)
        got += more
    return s


def measure(*, quick: bool = False) -> list[Figure]:
    count = 100 if quick else 2000
    with serving() as server:
        process = psutil.Process(server.pid)
        time.sleep(2 if quick else 10)
        cpu = _cpu_share(process, 5 if quick else 30)
        # The first sessions pay for what all share.
        sockets = [_login(server.sql_port) for _ in range(50)]
        time.sleep(1)
        before = process.memory_info().rss
        sockets += [_login(server.sql_port) for _ in range(count)]
        time.sleep(1)
        each = (process.memory_info().rss - before) / count / 1000
        for s in sockets:
            s.close()
    return [
        Figure(f"{count} idle connections, each", f"{each:.1f} kB", "<= 50 kB", each <= 50),
        Figure("idle server, server and Spark together", f"{cpu:.1%} of a core", "<= 3%", cpu <= 0.03),
    ]


def _cpu_share(process: psutil.Process, seconds: float) -> float:
    def used() -> float:
        everybody = [process, *process.children(recursive=True)]
        return sum(sum(p.cpu_times()[:2]) for p in everybody)

    before = used()
    time.sleep(seconds)
    return (used() - before) / seconds
