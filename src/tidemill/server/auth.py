"""Who may come in: the rule that both doors follow.

`Gate` is made once by `serve` from the settings. It knows the method, asks `Roles` (the engine) what is
stored of a role's password, counts failures (`access.attempts`) and has refusals noted. `pgwire.auth` and
`http.auth` carry it over their protocols. Promise: who is refused learns only that the password was wrong,
whether the role exists or not, and after as much time.
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
    """How a client proves who it is: not at all; by the role's password; by a certificate of the client CA
    whose CN is the role."""

    TRUST = "trust"
    PASSWORD = "password"
    CERTIFICATE = "certificate"


class LoginRefused(TidemillError):
    """The login failed. 28P01 a wrong password, 28000 anything else."""

    sqlstate = "28P01"


class Roles(Protocol):
    """What the gate asks of the engine."""

    def stored_password(self, role: str) -> str | None:
        """The verifier of a role's password; None where there is no such role or it has no password."""
        ...

    @property
    def login_key(self) -> bytes:
        """Secret, and the same for the life of the data directory: what roles that are not there seem to
        have is made from it."""
        ...

    def login_refused(self, role: str, address: str, reason: str) -> None:
        """For the audit log."""
        ...


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a connection. `certificate_name` is the CN of the certificate that it showed."""

    address: str
    tls: bool = False
    certificate_name: str | None = None

    @property
    def local(self) -> bool:
        """It is on this machine."""
        try:
            return ipaddress.ip_address(self.address).is_loopback
        except ValueError:
            return False


class Gate:
    """For the event loop's thread."""

    def __init__(self, method: Method, roles: Roles | None = None, attempts: Attempts | None = None) -> None:
        """`roles` may be None where nobody is asked for a password."""
        self.method = method
        self._roles = roles
        self.attempts = attempts or Attempts()

    def verifier(self, role: str) -> Verifier:
        """What the role's password is checked against; where there is none, one that nothing fits."""
        roles = self._known()
        text = roles.stored_password(role)
        found = None if text is None else parse_verifier(text)
        return mock_verifier(roles.login_key, role) if found is None else found

    def _known(self) -> Roles:
        if self._roles is None:
            raise TidemillError("there are no roles to ask for", sqlstate="XX000")
        return self._roles

    def begin(self, role: str, peer: Peer) -> None:
        """Before a password is looked at; raises where too many have failed."""
        try:
            self.attempts.check(peer.address, role)
        except TidemillError:
            LOGINS.labels("unseen").inc()
            self._known().login_refused(role, peer.address, "too many failures")
            raise

    def failed(self, role: str, peer: Peer) -> LoginRefused:
        """The password was wrong: what to raise."""
        LOGINS.labels("wrong").inc()
        self.attempts.failed(peer.address, role)
        self._known().login_refused(role, peer.address, "wrong password")
        return LoginRefused(f'password authentication failed for user "{role}"')

    def succeeded(self, role: str, peer: Peer) -> None:
        LOGINS.labels("ok").inc()
        self.attempts.succeeded(peer.address, role)

    async def check_password(self, role: str, password: str, peer: Peer) -> None:
        """A password in the clear, as HTTP has it; raises where it is not the role's. Hashing runs in a
        thread."""
        self.begin(role, peer)
        verifier = self.verifier(role)
        short = len(password.encode("utf-8", "surrogatepass")) <= MAX_PASSWORD_BYTES
        if not short or not await asyncio.to_thread(verifier.matches, password):
            raise self.failed(role, peer)
        self.succeeded(role, peer)

    def check_certificate(self, role: str, peer: Peer) -> None:
        """The client's certificate stands for the role, or it is refused."""
        if peer.certificate_name is None or peer.certificate_name != role:
            self._known().login_refused(role, peer.address, "certificate of another name")
            raise LoginRefused(f'certificate authentication failed for user "{role}"', sqlstate="28000")


TRUSTING = Gate(Method.TRUST)
