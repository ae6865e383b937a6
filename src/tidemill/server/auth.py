"""Authentication of clients, the same for both ports.

`serve` makes one `Gate` from the settings. It knows the method, reads the stored verifier of a role from
`Roles` (the engine), counts failures (`access.attempts`) and records refusals in the audit log.
`pgwire.auth` and `http.auth` implement the method in their protocols. Promise: a refused client learns
only that the password was wrong. The answer and its delay are the same whether the role exists or not.
"""

from __future__ import annotations

import asyncio
import ipaddress
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from tidemill.access.attempts import Attempts
from tidemill.access.scram import MAX_PASSWORD_BYTES, Verifier, mock_verifier, parse_verifier
from tidemill.errors import TidemillError
from tidemill.server.metrics import LOGINS


class Method(Enum):
    """The method of authentication: none (trust); the password of the role; or a certificate of the client CA
    whose CN is the role."""

    TRUST = "trust"
    PASSWORD = "password"
    CERTIFICATE = "certificate"


class LoginRefused(TidemillError):
    """The login failed. 28P01 a wrong password, 28000 anything else."""

    sqlstate = "28P01"


class Roles(Protocol):
    """The methods of the engine that the gate uses."""

    def stored_password(self, role: str) -> str | None:
        """The verifier of a role's password; None if the role does not exist or has no password."""
        ...

    @property
    def login_key(self) -> bytes:
        """A secret that is constant for the life of the data directory. The verifiers of unknown roles are
        derived from it."""
        ...

    def login_refused(self, role: str, address: str, reason: str) -> None:
        """Records the refusal in the audit log."""
        ...


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a connection. `certificate_name` is the CN of the certificate that it showed."""

    address: str
    tls: bool = False
    certificate_name: str | None = None

    @property
    def local(self) -> bool:
        """Whether the peer is on this machine."""
        try:
            return ipaddress.ip_address(self.address).is_loopback
        except ValueError:
            return False


class Gate:
    """Used on the event loop's thread only."""

    def __init__(self, method: Method, roles: Roles | None = None, attempts: Attempts | None = None) -> None:
        """`roles` may be None if no method needs a password."""
        self.method = method
        self._roles = roles
        self.attempts = attempts or Attempts()

    def verifier(self, role: str) -> Verifier:
        """The verifier of the role's password; if there is none, one that no password matches."""
        roles = self._known()
        text = roles.stored_password(role)
        found = None if text is None else parse_verifier(text)
        return mock_verifier(roles.login_key, role) if found is None else found

    def _known(self) -> Roles:
        if self._roles is None:
            raise TidemillError("there are no roles to ask for", sqlstate="XX000")
        return self._roles

    def begin(self, role: str, peer: Peer) -> None:
        """Called before a password is checked. Raises after too many failures."""
        try:
            self.attempts.check(peer.address, role)
        except TidemillError:
            LOGINS.labels("unseen").inc()
            self._known().login_refused(role, peer.address, "too many failures")
            raise

    def failed(self, role: str, peer: Peer) -> LoginRefused:
        """Counts a wrong password; returns the error to raise."""
        LOGINS.labels("wrong").inc()
        self.attempts.failed(peer.address, role)
        self._known().login_refused(role, peer.address, "wrong password")
        return LoginRefused(f'password authentication failed for user "{role}"')

    def succeeded(self, role: str, peer: Peer) -> None:
        LOGINS.labels("ok").inc()
        self.attempts.succeeded(peer.address, role)

    async def check_password(self, role: str, password: str, peer: Peer) -> None:
        """Checks a cleartext password, as HTTP sends it. Raises if it is wrong. Hashing runs in a thread."""
        self.begin(role, peer)
        verifier = self.verifier(role)
        short = len(password.encode("utf-8", "surrogatepass")) <= MAX_PASSWORD_BYTES
        if not short or not await asyncio.to_thread(verifier.matches, password):
            raise self.failed(role, peer)
        self.succeeded(role, peer)

    def check_certificate(self, role: str, peer: Peer) -> None:
        """Raises unless the client's certificate is issued to the role."""
        if peer.certificate_name is None or peer.certificate_name != role:
            self._known().login_refused(role, peer.address, "certificate of another name")
            raise LoginRefused(f'certificate authentication failed for user "{role}"', sqlstate="28000")


TRUSTING = Gate(Method.TRUST)
