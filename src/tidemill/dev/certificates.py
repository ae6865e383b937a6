"""Certificates for the TLS listeners of a local broker: an authority, a server and a client.

Called by `Broker` when it uses TLS. Created by the `openssl` command for each data folder. For trials and
tests only.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tidemill.errors import Unavailable

VALID_DAYS = "3650"
OPENSSL_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files. `server` contains key and certificate, as the broker's key store requires. A client needs
    `ca`, and `client` with `client_key` if the broker requires a client certificate."""

    ca: Path
    server: Path
    client: Path
    client_key: Path


def make_certificates(folder: Path) -> Certificates:
    """The certificates of `folder`; created if they do not exist."""
    made = Certificates(
        folder / "ca.pem", folder / "server.pem", folder / "client.pem", folder / "client.key"
    )
    if made.server.exists():
        return made
    openssl = shutil.which("openssl")
    if openssl is None:
        raise Unavailable("TLS needs the command openssl to make certificates", hint="install openssl")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = folder / "ca.key"
    _run(openssl, folder, "req", "-x509", *_NEW_KEY, "-keyout", str(key), "-out", str(made.ca), *_name("ca"))
    for name, extra in (("server", "subjectAltName=DNS:localhost,IP:127.0.0.1"), ("client", "")):
        command = ["req", "-x509", *_NEW_KEY, "-CA", str(made.ca), "-CAkey", str(key)]
        command += ["-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.crt"), *_name(name)]
        command += ["-addext", "basicConstraints=critical,CA:false"]
        _run(openssl, folder, *command, *(["-addext", extra] if extra else []))
    (folder / "client.crt").rename(made.client)
    # Written last and atomically: if it exists, all files exist.
    both = folder / "server.both"
    both.touch(mode=0o600)
    both.write_text((folder / "server.key").read_text() + (folder / "server.crt").read_text())
    both.rename(made.server)
    return made


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", VALID_DAYS)


def _name(name: str) -> tuple[str, str]:
    return "-subj", f"/CN=tidemill-dev-{name}"


def _run(openssl: str, folder: Path, *arguments: str) -> None:
    run = subprocess.run(
        [openssl, *arguments],
        capture_output=True,
        text=True,
        timeout=OPENSSL_SECONDS,
        cwd=folder,
        check=False,
    )
    if run.returncode != 0:
        raise Unavailable("openssl could not make a certificate", detail=run.stderr.strip()[-2000:])
