"""Conversations that no client means well with, from a seed: the same seed is the same conversation.

`conversation(seed)` makes one, `play` has it with a server and returns what came back, checked for what holds
whatever was said: whole messages of known kinds, errors with an SQLSTATE and never an internal one, nothing
behind a FATAL. Used by the fuzz tests, in small numbers against a listener in this process and in large ones
against a real server.
"""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto

import mischief_sql
import pgframes as f

SECONDS = 120.0
_TAGS = frozenset("RSKvZTDCIEN123nstHdcG")
# A server that was told nothing of Spark may be asked for it; it gives up soon.
_HASTE = "-c statement_timeout=200ms"


class End(Enum):
    """How the client leaves."""

    CLOSE = auto()  # says nothing more and reads what comes
    RESET = auto()  # is gone from one moment to the next
    TERMINATE = auto()


@dataclass
class Conversation:
    """What is sent, in pieces that go out one after another."""

    kind: str
    pieces: list[bytes] = field(default_factory=list[bytes])
    end: End = End.CLOSE
    # How many times the server must say that it is ready; it is waited for before the client leaves.
    ready: int = 0
    # Requests for encryption among them: each may be answered by a single byte.
    wishes: int = 0


def conversation(seed: int) -> Conversation:
    rng = random.Random(seed)
    make = rng.choices([k for k, _ in _KINDS], [w for _, w in _KINDS])[0]
    made = make(rng)
    if not made.ready:
        made.pieces = [piece for whole in made.pieces for piece in _cut(rng, whole)]
    return made


def _cut(rng: random.Random, data: bytes) -> list[bytes]:
    if len(data) > 1 and rng.random() < 0.2:
        at = rng.randrange(1, len(data))
        return [data[:at], data[at:]]
    return [data]


# -- kinds ---------------------------------------------------------------------------------------------


def _noise(rng: random.Random) -> Conversation:
    data = rng.randbytes(rng.randrange(1, 200))
    if rng.random() < 0.3:
        data = struct.pack("!i", rng.choice([len(data) + 4, 8, 9, 10_000, 10_001, 0, -1, 2**31 - 1])) + data
    return Conversation("noise", [data], rng.choice(list(End)))


def _startup(rng: random.Random) -> Conversation:
    """First packets that are odd: twice the same wish, versions, options, cancels of what is not there."""
    pieces: list[bytes] = []
    wishes = 0
    for _ in range(rng.randrange(3)):
        pieces.append(rng.choice([f.SSL, f.GSS]))
        wishes += 1
    extra = {name: mischief_sql.text(rng, 20) for name in rng.sample(_PARAMETERS, rng.randrange(4))}
    last = rng.choice(
        [
            f.startup(rng.choice([0, 1, 2, 3, 9999]), **extra),
            f.startup(0, user=mischief_sql.text(rng, 30)),
            f.startup(0, database=mischief_sql.text(rng, 30)),
            f.startup(2, **{f"_pq_.{mischief_sql.word(rng)}": "1"}),
            f.cancel(rng.randrange(2**31), rng.randbytes(rng.choice([0, 3, 4, 32, 256, 257]))),
            struct.pack("!iHH", 8, rng.randrange(65536), rng.randrange(65536)),
            f.request(rng.randrange(5670, 5690), rng.randbytes(rng.randrange(20))),
        ]
    )
    if rng.random() < 0.3:
        last = _mutated(rng, last)
    return Conversation("startup", [*pieces, last], rng.choice(list(End)), wishes=wishes + 1)


_PARAMETERS = [
    "options",
    "client_encoding",
    "TimeZone",
    "application_name",
    "replication",
    "DateStyle",
    "role",
]


def _login(rng: random.Random) -> bytes:
    return f.startup(rng.choice([0, 2]), options=_HASTE)


def _after_login(rng: random.Random) -> Conversation:
    return Conversation(
        "noise after login", [_login(rng), rng.randbytes(rng.randrange(1, 300))], rng.choice(list(End))
    )


def _disorder(rng: random.Random) -> Conversation:
    """Messages that are each sound, in any order."""
    pieces = [_login(rng), b"".join(_message(rng) for _ in range(rng.randrange(1, 25)))]
    return Conversation("disorder", pieces, rng.choice(list(End)))


def _lies(rng: random.Random) -> Conversation:
    """Messages of which one says something wrong of itself."""
    messages = [_message(rng) for _ in range(rng.randrange(1, 8))]
    at = rng.randrange(len(messages))
    messages[at] = _mutated(rng, messages[at])
    return Conversation("lies", [_login(rng), b"".join(messages)], rng.choice(list(End)))


def _half(rng: random.Random) -> Conversation:
    """A conversation that stops in the middle of a message."""
    data = b"".join(_message(rng) for _ in range(rng.randrange(1, 5)))
    return Conversation("half", [_login(rng), data[: rng.randrange(len(data))]], rng.choice(list(End)))


def _sql(rng: random.Random) -> Conversation:
    """Statements that are odd, each in a frame that is right: whatever they are, the server is ready
    again."""
    pieces = [_login(rng)]
    for _ in range(rng.randrange(1, 4)):
        text = mischief_sql.statement(rng)
        if rng.random() < 0.6:
            # Described and not run: most would need Spark.
            pieces.append(f.parse(text) + f.describe(b"S") + f.SYNC)
        else:
            pieces.append(f.query(mischief_sql.harmless(rng)))
    return Conversation("sql", pieces, End.TERMINATE, ready=len(pieces))


_KINDS: list[tuple[Callable[[random.Random], Conversation], int]] = [
    (_noise, 15),
    (_startup, 15),
    (_after_login, 10),
    (_disorder, 20),
    (_lies, 20),
    (_half, 10),
    (_sql, 30),
]

_TEXTS = [
    "SELECT 1",
    "",
    ";",
    "BEGIN",
    "COMMIT",
    "ROLLBACK",
    "SHOW timezone",
    "SELECT $1::int4",
    "SELEC",
    "x\ty",
]
_NAMES = ["", "", "a", "b", "c" * 255, "d" * 256, "\u00e9", 'q"q']


def _message(rng: random.Random) -> bytes:
    name, other = rng.choice(_NAMES), rng.choice(_NAMES)
    codes = [rng.choice([0, 1, 2, -1]) for _ in range(rng.randrange(3))]
    return rng.choice(
        [
            lambda: f.query(rng.choice(_TEXTS)),
            lambda: f.parse(
                rng.choice(_TEXTS), name, [rng.choice([0, 23, 25, 705, 2**32 - 1])] * rng.randrange(3)
            ),
            lambda: f.bind(
                [
                    rng.choice([None, b"", b"1", b"\0\0\0\1", rng.randbytes(9)])
                    for _ in range(rng.randrange(3))
                ],
                name,
                other,
                codes,
                codes[::-1],
            ),
            lambda: f.describe(rng.choice([b"S", b"P"]), name),
            lambda: f.execute(name, rng.choice([0, 1, -1, 2**31 - 1])),
            lambda: f.close(rng.choice([b"S", b"P"]), name),
            lambda: f.SYNC,
            lambda: f.SYNC,
            lambda: f.FLUSH,
            lambda: f.copy_data(rng.randbytes(rng.randrange(50))),
            lambda: f.COPY_DONE,
            lambda: f.copy_fail("no"),
            lambda: f.frame(b"F", rng.randbytes(rng.randrange(20))),
            lambda: f.password(rng.randbytes(rng.randrange(40))),
            lambda: f.TERMINATE,
        ]
    )()


def _mutated(rng: random.Random, data: bytes) -> bytes:
    broken = bytearray(data)
    match rng.randrange(4):
        case 0 if len(broken) >= 5:
            struct.pack_into(
                "!i", broken, 1, rng.choice([0, 3, 4, 5, -1, 2**31 - 1, 64 << 20, len(data) + 7])
            )
        case 1:
            for _ in range(rng.randrange(1, 4)):
                broken[rng.randrange(len(broken))] = rng.randrange(256)
        case 2:
            del broken[rng.randrange(len(broken)) :]
            broken += b"\0"
        case _:
            at = rng.randrange(len(broken))
            broken[at:at] = rng.randbytes(rng.randrange(1, 9))
    return bytes(broken)


# -- having it -----------------------------------------------------------------------------------------


def play(port: int, talk: Conversation) -> list[tuple[str, bytes]]:
    """What the server said, checked. Raises AssertionError (or a time-out) where it misbehaves."""
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as sock:
        data = bytearray()
        whole = True
        try:
            for n, piece in enumerate(talk.pieces):
                sock.sendall(piece)
                while n < talk.ready and data.count(_READY) <= n and (got := sock.recv(65536)):
                    data += got
            if talk.end is End.RESET:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return []
            if talk.end is End.TERMINATE:
                sock.sendall(f.TERMINATE)
            sock.shutdown(socket.SHUT_WR)
        except TimeoutError:
            raise
        except OSError:
            # It had enough of us; what it said before may be lost with the connection.
            whole = False
        try:
            while got := sock.recv(65536):
                data += got
        except ConnectionResetError:
            whole = False
        return checked(talk, bytes(data), whole=whole)


# The beginning of ReadyForQuery. Texts that hold the same are not sent.
_READY = b"Z\0\0\0\5"


def checked(talk: Conversation, data: bytes, *, whole: bool) -> list[tuple[str, bytes]]:
    for _ in range(talk.wishes):
        # One byte that is no message: what would be its length is far too long.
        if data[:1] == b"N" and (len(data) < 5 or struct.unpack("!i", data[1:5])[0] > 1 << 20):
            data = data[1:]
    found: list[tuple[str, bytes]] = []
    at = 0
    while at + 5 <= len(data):
        (length,) = struct.unpack_from("!i", data, at + 1)
        tag = chr(data[at])
        assert tag in _TAGS and length >= 4, (talk.kind, tag, length)
        if at + 1 + length > len(data):
            break
        found.append((tag, data[at + 5 : at + 1 + length]))
        at += 1 + length
    assert at == len(data) or not whole, (talk.kind, "half a message", data[at:])
    for n, (tag, body) in enumerate(found):
        if tag == "E":
            error = f.fields(body)
            assert error["V"] in ("ERROR", "FATAL") and len(error["C"]) == 5 and error["M"], error
            assert error["C"] != "XX000", (talk.kind, error)
            assert error["V"] == "ERROR" or n == len(found) - 1, (talk.kind, "said more behind FATAL")
    if talk.ready:
        assert whole and [tag for tag, _ in found].count("Z") == talk.ready, (talk.kind, found[-3:])
    return found
