"""The TLS certificate of the server, used by both ports.

`serve` calls `load` with the files of the settings. `Tls.reload` reads them again on request of the
operator. Promises: TLS 1.2 or later, no renegotiation, no compression. An unusable file raises an error
that names it, and the previous certificate stays. With a client CA, only clients with a certificate of
that CA can connect.
"""

from __future__ import annotations

import hashlib
import ssl
from dataclasses import dataclass

from tidemill.errors import TidemillError

# Of the protocol negotiation inside TLS: what a client that starts with TLS right away must ask for.
ALPN = "postgresql"

# The hash of a certificate's signature, by the object identifier of its algorithm (DER): RSA and ECDSA with
# SHA-256, -384, -512. RFC 5929 requires SHA-256 for older ones.
_HASHES = {
    bytes.fromhex("2a864886f70d01010b"): "sha256",
    bytes.fromhex("2a864886f70d01010c"): "sha384",
    bytes.fromhex("2a864886f70d01010d"): "sha512",
    bytes.fromhex("2a8648ce3d040302"): "sha256",
    bytes.fromhex("2a8648ce3d040303"): "sha384",
    bytes.fromhex("2a8648ce3d040304"): "sha512",
    bytes.fromhex("2a864886f70d010105"): "sha256",
    bytes.fromhex("2a8648ce3d0401"): "sha256",
}


class CertificateError(TidemillError):
    """A file of the TLS settings that cannot be used."""

    sqlstate = "F0000"


@dataclass(slots=True)
class Tls:
    """`sql` and `http` are the contexts of the ports, which negotiate different protocols. `end_point` is the
    hash of our certificate for channel binding (RFC 5929); None if its algorithm has none."""

    sql: ssl.SSLContext
    http: ssl.SSLContext
    end_point: bytes | None
    # Where they are from.
    certificate: str
    key: str

    def reload(self) -> None:
        """Reads certificate and key again, for new connections. On failure raises CertificateError and
        changes nothing."""
        _load_certificate(_context(), self.certificate, self.key)
        binding = end_point(_first_certificate(self.certificate))
        for context in (self.sql, self.http):
            _load_certificate(context, self.certificate, self.key)
        self.end_point = binding


def load(certificate: str, key: str, client_ca: str = "") -> Tls:
    """`certificate` may hold the chain, and the key if `key` is empty."""
    contexts = [_context(), _context()]
    for context, protocol in zip(contexts, (ALPN, "http/1.1"), strict=True):
        _load_certificate(context, certificate, key)
        _require_clients_of(context, client_ca)
        context.set_alpn_protocols([protocol])
    return Tls(contexts[0], contexts[1], end_point(_first_certificate(certificate)), certificate, key)


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
    return context


def _load_certificate(context: ssl.SSLContext, certificate: str, key: str) -> None:
    try:
        # An encrypted key would make OpenSSL ask on the terminal.
        context.load_cert_chain(certificate, key or None, password=lambda: "")
    except (OSError, ValueError) as e:
        shown = certificate if not key else f"{certificate} and {key}"
        raise CertificateError(
            f"cannot use the certificate of --tls-cert and --tls-key: {shown}",
            detail=_reason(e),
            hint="Both are PEM files, the key without a passphrase, and belong together.",
        ) from e


def _require_clients_of(context: ssl.SSLContext, authority: str) -> None:
    if not authority:
        return
    try:
        context.load_verify_locations(cafile=authority)
    except (OSError, ValueError) as e:
        raise CertificateError(
            f"cannot use the authority of --tls-client-ca: {authority}", detail=_reason(e)
        ) from e
    context.verify_mode = ssl.CERT_REQUIRED


def _reason(error: Exception) -> str:
    text = error.reason if isinstance(error, ssl.SSLError) else getattr(error, "strerror", None)
    return str(text or error)


def _first_certificate(path: str) -> bytes:
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    with open(path, encoding="ascii", errors="replace") as file:
        text = file.read()
    at = text.index(begin)
    return ssl.PEM_cert_to_DER_cert(text[at : text.index(end, at) + len(end)] + "\n")


def end_point(certificate: bytes) -> bytes | None:
    """The channel binding `tls-server-end-point` of a certificate in DER."""
    # Certificate ::= SEQUENCE { to be signed, SEQUENCE { OBJECT IDENTIFIER, ... }, signature }
    _, inside, _ = _element(certificate, 0)
    _, _, after = _element(certificate, inside)
    _, algorithm, _ = _element(certificate, after)
    _, start, stop = _element(certificate, algorithm)
    name = _HASHES.get(certificate[start:stop])
    return None if name is None else hashlib.new(name, certificate).digest()


def _element(data: bytes, at: int) -> tuple[int, int, int]:
    """One element of DER: its tag, and where its content starts and stops."""
    tag, length = data[at], data[at + 1]
    start = at + 2
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(data[at + 2 : start])
    return tag, start, start + length


def common_name(certificate: object) -> str | None:
    """The CN of a client's certificate, as returned by `getpeercert`: the name of the role."""
    if not isinstance(certificate, dict):
        return None
    for part in certificate.get("subject", ()):
        for name, value in part:
            if name == "commonName":
                return value
    return None
