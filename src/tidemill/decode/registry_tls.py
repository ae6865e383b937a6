"""TLS for the schema registry client: trusted authorities and client certificate.

Used by `registry`, on the driver and in tasks. Certificates and keys are texts (of secrets). Python reads
them only from files, so they are passed as an in-memory file where the system supports it.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Generator
from contextlib import contextmanager

from tidemill.errors import InvalidValue


def context(authority: str | None, certificate: str | None, key: str | None) -> ssl.SSLContext:
    """`authority`: who signed the registry's certificate, instead of those that the machine trusts. Raises
    InvalidValue."""
    try:
        made = ssl.create_default_context(cadata=authority)
    except ssl.SSLError:
        raise InvalidValue(
            "the schema registry's certificate authority is no certificate in PEM form", sqlstate="22023"
        ) from None
    if certificate is not None and key is not None:
        try:
            with _file(f"{certificate}\n{key}\n") as path:
                # A key with a pass phrase is refused; otherwise OpenSSL would prompt for it here.
                made.load_cert_chain(path, password="")
        except (ssl.SSLError, ValueError):
            raise InvalidValue(
                "the client's certificate and key for the schema registry cannot be used",
                detail="They are no certificate and no key in PEM form, do not belong together, or the key "
                "has a pass phrase.",
                hint="See SSL CERTIFICATE and SSL KEY of the connection.",
                sqlstate="22023",
            ) from None
    return made


@contextmanager
def _file(text: str) -> Generator[str]:
    """The path of a private file with the text, while it is needed."""
    if not hasattr(os, "memfd_create"):
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
            file.write(text)
            file.flush()
            yield file.name
        return
    descriptor = os.memfd_create("tidemill")
    try:
        os.write(descriptor, text.encode())
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
