"""Authentication on the SQL port.

An `Authentication` is a generator. It yields the bytes of authentication requests
(`replies.authentication`) and receives the content of each password message. When it returns, the login
has succeeded, and the returned bytes are sent before AuthenticationOk. A TidemillError refuses the
client. It does no I/O, so that each method can be tested alone. Driven by `connection`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator

from tidemill.access.scram import MECHANISM, MECHANISM_PLUS, ServerExchange, WrongProof
from tidemill.server.auth import Gate, Method, Peer
from tidemill.server.pgwire import replies
from tidemill.server.pgwire.messages import MalformedMessage, Startup

Exchange = Generator[bytes, bytes, bytes | None]
# What a connection knows about its client: the startup packet, the peer address, and with TLS the hash of the
# server's certificate.
Authentication = Callable[[Startup, Peer, bytes | None], Exchange]

_SASL, _SASL_CONTINUE, _SASL_FINAL = 10, 11, 12


def trust(startup: Startup, peer: Peer, binding: bytes | None) -> Exchange:
    """Accept every user name without proof. Only for loopback addresses; the owner of the listener ensures
    that."""
    del startup, peer, binding
    yield from ()
    return None


def authentication(gate: Gate) -> Authentication:
    """The authentication method of the gate, for this protocol."""
    if gate.method is Method.TRUST:
        return trust

    def exchange(startup: Startup, peer: Peer, binding: bytes | None) -> Exchange:
        role = startup.parameters.get("user", "")
        if not role:
            # Refused when the session is opened, with PostgreSQL's message.
            return None
        if gate.method is Method.CERTIFICATE:
            gate.check_certificate(role, peer)
            return None
        return (yield from scram(gate, role, peer, binding))

    return exchange


def scram(gate: Gate, role: str, peer: Peer, binding: bytes | None) -> Exchange:
    """SCRAM-SHA-256, with channel binding if the connection has TLS and the client supports it."""
    gate.begin(role, peer)
    offered = [MECHANISM_PLUS, MECHANISM] if binding is not None else [MECHANISM]
    names = b"".join(name.encode() + b"\0" for name in offered)
    chosen, first = _initial((yield replies.authentication(_SASL, names + b"\0")))
    if chosen not in offered:
        raise MalformedMessage("client selected an invalid SASL authentication mechanism")
    side = ServerExchange(gate.verifier(role), binding=binding, plus=chosen == MECHANISM_PLUS)
    last = yield replies.authentication(_SASL_CONTINUE, side.first(first))
    try:
        signature = side.final(last)
    except WrongProof:
        raise gate.failed(role, peer) from None
    gate.succeeded(role, peer)
    return replies.authentication(_SASL_FINAL, signature)


def _initial(data: bytes) -> tuple[str, bytes]:
    """Parse SASLInitialResponse: the mechanism's name and the first message."""
    name, zero, rest = data.partition(b"\0")
    if not zero or len(rest) < 4:
        raise MalformedMessage("malformed SASL message")
    (length,) = struct.unpack_from("!i", rest)
    if length != len(rest) - 4:
        raise MalformedMessage("malformed SASL message", detail=f"The length field says {length}.")
    return name.decode("ascii", "replace"), rest[4:]
