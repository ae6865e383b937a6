"""Five thousand connections at once: what each takes, and that each answers."""

from __future__ import annotations

import resource
import socket
import struct
import time

import psutil
import psycopg

from bench.report import Figure, ms
from support.server import ServerProcess
from tidemill.dev.postgres import Postgres

AIM_KB = 50.0
# All that the server takes; one of them is asked while the others are idle.
MOST = 5_000


def measure_connections(ours: ServerProcess, theirs: Postgres, *, quick: bool) -> list[Figure]:
    del theirs
    count = 200 if quick else MOST
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    process = psutil.Process(ours.pid)
    # A few first: what the server makes once for all of them is not theirs.
    for sock in [_login(ours.sql_port) for _ in range(20)]:
        _ask(sock)
        sock.close()
    while any(c.laddr.port == ours.sql_port and c.raddr for c in process.net_connections("tcp")):
        time.sleep(0.1)
    before = process.memory_info().rss
    began = time.perf_counter()
    opened = [_login(ours.sql_port) for _ in range(count - 1)]
    connected = time.perf_counter() - began
    began = time.perf_counter()
    for sock in opened:
        _ask(sock)
    answered = time.perf_counter() - began
    each = (process.memory_info().rss - before) / count / 1000
    with psycopg.connect(ours.sql_dsn, autocommit=True) as c:
        began = time.perf_counter()
        c.execute("SELECT 1")
        beside = time.perf_counter() - began
    for sock in opened:
        sock.close()
    return [
        Figure(
            f"memory of each of {count} connections that have answered",
            f"{each:.1f} kB",
            f"<= {AIM_KB:.0f} kB",
            each <= AIM_KB,
        ),
        Figure(
            "... opened one after another, each asked once, one more asks beside them",
            f"{ms(connected / count)}, {ms(answered / count)}, {ms(beside)}",
            "all answer",
            True,
        ),
    ]


def _login(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=120)
    body = struct.pack("!HH", 3, 0) + b"user\0materialize\0database\0materialize\0\0"
    sock.sendall(struct.pack("!i", len(body) + 4) + body)
    _until_ready(sock)
    return sock


def _ask(sock: socket.socket) -> None:
    sock.sendall(b"Q" + struct.pack("!i", 13) + b"SELECT 1\0")
    if b"D\0\0\0\x0b\0\x01\0\0\0\x011" not in _until_ready(sock):
        raise AssertionError("a connection did not answer")


def _until_ready(sock: socket.socket) -> bytes:
    data = b""
    while not data.endswith((b"Z\0\0\0\x05I",)):
        piece = sock.recv(65_536)
        if not piece:
            raise AssertionError(f"the server closed a connection: {data!r}")
        data += piece
    return data
