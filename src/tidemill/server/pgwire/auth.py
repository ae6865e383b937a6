"""How a client proves who it is.

An `Authentication` is a generator: it yields the bytes of authentication requests (`replies.authentication`)
and is sent the content of each password message; when it returns, the client is in, and a TidemillError
refuses it. Without I/O, so that a method can be tested by itself. Driven by `connection`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from tidemill.server.pgwire.messages import Startup

Exchange = Generator[bytes, bytes, None]
Authentication = Callable[[Startup], Exchange]


def trust(startup: Startup) -> Exchange:
    """Everyone is who they say they are. Fit for loopback addresses only; the listener's owner sees to
    that."""
    yield from ()
