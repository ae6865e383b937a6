"""Mischief by the seed: whatever a client sends, it gets an error or is shown out, and everybody else goes
on.

A few hundred conversations with the protocol without sockets and with a listener in this process.
`test_server_fuzz` has many with a real server.
"""

from __future__ import annotations

import itertools
import random
import socket
from collections.abc import Iterator

import mischief
import mischief_sql
import pgframes as f
import pytest
from mischief import End, conversation, play
from tablets import Tablets, table
from wireserver import Served, tags

from tidemill.errors import TidemillError
from tidemill.server import limits
from tidemill.server.pgwire import messages as m
from tidemill.server.pgwire.protocol import Protocol, ProtocolFailure
from tidemill.sql.parse import parse
from tidemill.types import model


def test_the_protocol_follows_any_bytes_or_says_why_not() -> None:
    """However they are cut: the same events; after a failure none; never more held than a message."""
    for seed in range(2_000):
        said = b"".join(conversation(seed).pieces)
        rng = random.Random(seed)
        events = [_events(said, rng, pieces) for pieces in (1, 7)]
        assert events[0] == events[1], seed


def _events(said: bytes, rng: random.Random, pieces: int) -> list[str]:
    """What becomes of the bytes: byte by byte up to the login, then in so many pieces."""
    protocol = Protocol()
    found: list[str] = []
    began = len(said)
    for at in range(len(said)):
        events = protocol.receive(said[at : at + 1])
        found += map(repr, events)
        if any(isinstance(event, m.Startup) for event in events):
            protocol.logged_in()
            began = at + 1
            break
    edges = [began, *sorted(rng.randrange(began, len(said) + 1) for _ in range(pieces - 1)), len(said)]
    for a, b in itertools.pairwise(edges):
        for event in protocol.receive(said[a:b]):
            found.append(repr(event))
            assert not isinstance(event, ProtocolFailure) or (
                protocol.over and event.error.sqlstate != "XX000"
            )
        assert protocol.buffered <= min(len(said), limits.MAX_MESSAGE_BYTES + 5)
    return found


def test_statements_are_parsed_or_refused() -> None:
    for seed in range(300):
        rng = random.Random(seed)
        for text in (mischief_sql.statement(rng), mischief_sql.harmless(rng)):
            try:
                parse(text)
            except TidemillError as e:
                assert e.sqlstate != "XX000" and e.primary, (seed, e)
                assert e.position is None or 1 <= e.position <= len(text) + 1, (seed, e, e.position)


@pytest.fixture
def served() -> Iterator[Served]:
    engine = Tablets()
    engine.tables["t"] = table(("a", model.INT4), rows=[(1,)])
    with Served(engine) as served:
        yield served


def test_a_listener_outlives_mischief(served: Served) -> None:
    with served.raw() as witness:
        kinds: set[str] = set()
        for seed in range(400):
            talk = conversation(seed)
            if talk.kind == "sql":
                # The small engine's grammar is too small for it.
                continue
            kinds.add(talk.kind)
            play(served.port, talk)
            if seed % 20 == 0:
                assert tags(witness.ask(f.query("select 1"))) == "TDCZ"
        assert kinds == {"noise", "startup", "noise after login", "disorder", "lies", "half"}
        assert tags(witness.ask(f.query("SELECT * FROM t"))) == "TDCZ"


def test_500_stalled_handshakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """At every stage: none holds anybody up, and all are ended by the listener."""
    monkeypatch.setattr(limits, "LOGIN_SECONDS", 1.0)
    stages = [b"", b"\0", f.SSL[:5], f.SSL, f.startup()[:20], f.cancel(1, b"1234")[:15]]
    with Served(Tablets(), max_connections=1_000) as served, served.raw() as witness:
        stalled = [socket.create_connection(("127.0.0.1", served.port), 120) for _ in range(500)]
        for n, sock in enumerate(stalled):
            sock.sendall(stages[n % len(stages)])
        assert tags(witness.ask(f.query("select 1"))) == "TDCZ"
        with served.raw() as another:
            assert tags(another.ask(f.query("select 1"))) == "TDCZ"
        for sock in stalled:
            while sock.recv(100):
                pass
            sock.close()
        assert tags(witness.ask(f.query("select 1"))) == "TDCZ"


def test_the_checks_see_what_is_wrong() -> None:
    """The tester is tested: answers that a server must not give."""
    talk = mischief.Conversation("x", ready=1, end=End.CLOSE)
    checked = mischief.checked
    fine = f.frame(b"Z", b"I")
    assert [tag for tag, _ in checked(talk, fine, whole=True)] == ["Z"]
    fatal = f.frame(b"E", b"SFATAL\0VFATAL\0C08P01\0Mno\0\0")
    bug = f.frame(b"E", b"SERROR\0VERROR\0CXX000\0Mno\0\0")
    for wrong in (fine[:-1], b"!" + fine[1:], b"", fatal + fine, bug + fine, fine + fine):
        with pytest.raises(AssertionError):
            checked(talk, wrong, whole=True)
