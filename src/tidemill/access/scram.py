"""SCRAM-SHA-256 (RFC 5802, RFC 7677): the stored form of a password, and the server side of the exchange.

Only a `Verifier` is stored. It does not allow a login, and the password can be found only by guessing. Its
text is PostgreSQL's, so verifiers can be copied from PostgreSQL. `ServerExchange` takes the two messages of
the client and returns the two of the server; `server.auth` transports them. No I/O.

Promise: an unknown user, a user without a password and a wrong password take the same steps and raise the
same error (`mock_verifier`). Comparisons take constant time.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field

from tidemill.access.saslprep import saslprep
from tidemill.errors import TidemillError

MECHANISM = "SCRAM-SHA-256"
# The same, bound to the TLS connection, so that an attacker in between cannot relay the messages.
MECHANISM_PLUS = "SCRAM-SHA-256-PLUS"
BINDING = "tls-server-end-point"

# PostgreSQL's own: a login costs the client some milliseconds, a guess as much.
ITERATIONS = 4096
# A verifier from elsewhere may have more; beyond this a login over HTTP would take a second of our time.
MAX_ITERATIONS = 1_000_000
_SALT_BYTES = 16
_NONCE_BYTES = 18
# Of a client's nonce; they have 24 characters.
_MAX_NONCE = 512
# Longer passwords are refused, because hashing processes the whole password.
MAX_PASSWORD_BYTES = 1024

_TEXT = re.compile(r"SCRAM-SHA-256\$([0-9]{1,7}):([A-Za-z0-9+/=]+)\$([A-Za-z0-9+/=]+):([A-Za-z0-9+/=]+)")
_NONCE = re.compile(r"[\x21-\x2b\x2d-\x7e]+")


class MalformedScram(TidemillError):
    """A SCRAM message that breaks the grammar."""

    sqlstate = "08P01"


class WrongProof(Exception):
    """The client does not know the password (or there is none). Says nothing more on purpose."""


@dataclass(frozen=True, slots=True)
class Verifier:
    """What is stored of a password."""

    iterations: int
    salt: bytes
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    def text(self) -> str:
        """As PostgreSQL writes it: `SCRAM-SHA-256$<iterations>:<salt>$<stored key>:<server key>`."""
        salt, stored, server = map(_encode, (self.salt, self.stored_key, self.server_key))
        return f"{MECHANISM}${self.iterations}:{salt}${stored}:{server}"

    def matches(self, password: str) -> bool:
        """Whether this is the password. Takes as long as hashing does: not for the event loop."""
        made = make_verifier(password, salt=self.salt, iterations=self.iterations)
        return hmac.compare_digest(made.stored_key, self.stored_key)


def make_verifier(password: str, *, salt: bytes | None = None, iterations: int = ITERATIONS) -> Verifier:
    salt = secrets.token_bytes(_SALT_BYTES) if salt is None else salt
    salted = hashlib.pbkdf2_hmac("sha256", saslprep(password), salt, iterations)
    stored = hashlib.sha256(_hmac(salted, b"Client Key")).digest()
    return Verifier(iterations, salt, stored, _hmac(salted, b"Server Key"))


def parse_verifier(text: str) -> Verifier | None:
    """Returns None if `text` is not a verifier."""
    match = _TEXT.fullmatch(text)
    if match is None or not 1 <= int(match[1]) <= MAX_ITERATIONS:
        return None
    try:
        salt, stored, server = (base64.b64decode(match[n], validate=True) for n in (2, 3, 4))
    except binascii.Error:
        return None
    return Verifier(int(match[1]), salt, stored, server) if len(stored) == len(server) == 32 else None


def mock_verifier(key: bytes, user: str) -> Verifier:
    """For a user without a verifier: always the same salt for the same name, and no password matches. `key`
    is secret and constant; otherwise the salt would reveal which users exist."""
    salt = _hmac(key, user.encode("utf-8", "surrogatepass"))[:_SALT_BYTES]
    return Verifier(ITERATIONS, salt, secrets.token_bytes(32), secrets.token_bytes(32))


class ServerExchange:
    """One login. `binding` is the hash of our certificate where the connection has TLS; `plus` says that the
    client chose the mechanism that is bound to it."""

    def __init__(
        self,
        verifier: Verifier,
        *,
        binding: bytes | None = None,
        plus: bool = False,
        nonce: str | None = None,
    ) -> None:
        self._verifier = verifier
        self._binding = binding
        self._plus = plus
        self._own_nonce = nonce or _encode(secrets.token_bytes(_NONCE_BYTES))
        # Set by the first message: the header that the second must repeat, both nonces, and the two messages
        # as they are part of what is signed.
        self._header = ""
        self._nonce = ""
        self._signed = ""

    def first(self, message: bytes) -> bytes:
        """The client's first message; returns the server's."""
        text = _text(message)
        flag, comma, rest = text.partition(",")
        identity, comma2, bare = rest.partition(",")
        if not comma or not comma2:
            raise _malformed("The first message has no header.")
        self._check_flag(flag)
        if identity:
            raise TidemillError(
                "client uses authorization identity, but it is not supported", sqlstate="0A000"
            )
        self._header = f"{flag},,"
        fields = bare.split(",")
        if fields[0].startswith("m="):
            raise TidemillError("client requires an unsupported SCRAM extension", sqlstate="0A000")
        if len(fields) < 2 or not fields[0].startswith("n="):
            raise _malformed("The first message has no user name.")
        # The name is that of the startup packet, as in PostgreSQL; many clients leave it out here.
        nonce = _value(fields[1], "r")
        if not nonce or len(nonce) > _MAX_NONCE or _NONCE.fullmatch(nonce) is None:
            raise _malformed("The first message has no good nonce.")
        self._nonce = nonce + self._own_nonce
        answer = f"r={self._nonce},s={_encode(self._verifier.salt)},i={self._verifier.iterations}"
        self._signed = f"{bare},{answer}"
        return answer.encode()

    def final(self, message: bytes) -> bytes:
        """The client's last message; returns the server's signature, or raises WrongProof."""
        text = _text(message)
        without_proof, comma, last = text.rpartition(",")
        fields = without_proof.split(",")
        if not comma or len(fields) < 2:
            raise _malformed("The last message is not whole.")
        bound = _decode(_value(fields[0], "c"))
        proof = _decode(_value(last, "p"))
        header = self._header.encode()
        expected = header + (self._binding or b"") if self._plus else header
        if not hmac.compare_digest(bound, expected):
            raise MalformedScram("SCRAM channel binding check failed", sqlstate="28000")
        if not hmac.compare_digest(_value(fields[1], "r").encode(), self._nonce.encode()):
            raise _malformed("The nonce is not the one that was agreed.")
        if len(proof) != hashlib.sha256().digest_size:
            raise _malformed("The proof has the wrong length.")
        signed = f"{self._signed},{without_proof}".encode()
        signature = _hmac(self._verifier.stored_key, signed)
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        if not hmac.compare_digest(hashlib.sha256(client_key).digest(), self._verifier.stored_key):
            raise WrongProof
        return f"v={_encode(_hmac(self._verifier.server_key, signed))}".encode()

    def _check_flag(self, flag: str) -> None:
        """n: the client does not bind; y: it would, and thinks that we cannot; p=...: it does."""
        if self._plus:
            if flag != f"p={BINDING}":
                raise TidemillError("unsupported SCRAM channel-binding type", sqlstate="0A000")
        elif flag == "y":
            if self._binding is not None:
                # We offered it, so an attacker in between has removed the offer.
                raise TidemillError("SCRAM channel binding negotiation error", sqlstate="28000")
        elif flag != "n":
            raise _malformed("The header is not known.")


def _malformed(detail: str) -> MalformedScram:
    return MalformedScram("malformed SCRAM message", detail=detail)


def _hmac(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "sha256")


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise _malformed("A value is not base64.") from None


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise _malformed("It is not UTF-8.") from None


def _value(field_: str, name: str) -> str:
    if not field_.startswith(f"{name}="):
        raise _malformed(f"The attribute {name} is missing.")
    return field_[2:]
