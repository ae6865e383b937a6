"""A wave of results, without Spark: the JVM may forget it as soon as it is read."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from tidemill.errors import Unavailable
from tidemill.query.run import _Wave  # pyright: ignore[reportPrivateUsage]


class Bound:
    """Stands for an object of the JVM, which holds it until Python says that it does not need it."""

    def __init__(self, *values: Any) -> None:
        self.held = True
        self._values = values
        # Raised where the JVM is asked whether it sent all.
        self.failure: Exception | None = None

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def getResult(self) -> None:
        assert self.held
        if self.failure is not None:
            raise self.failure

    def _detach(self) -> None:
        self.held = False


class World:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            theirs.sendall(data)
        self.server = Bound()
        self.served = Bound("address", "secret", self.server)
        monkeypatch.setattr("pyspark.util.local_connect_and_auth", lambda *_: (ours.makefile("rwb"), ours))
        self.wave = _Wave(self.served)


def test_what_is_read_is_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, b"".join(struct.pack(">i", len(t)) + t for t in (b"some", b"rows")))
    assert not world.served.held
    assert [bytes(world.wave.read() or b""), bytes(world.wave.read() or b"")] == [b"some", b"rows"]
    assert world.server.held
    assert world.wave.read() is None
    assert not world.server.held


def test_a_wave_that_was_not_sent_whole_is_let_go_of_too(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, b"")
    world.server.failure = Unavailable("the job was stopped")
    with pytest.raises(Unavailable):
        world.wave.read()
    assert not world.server.held
