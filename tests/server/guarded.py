"""A real server that asks for passwords over TLS, without Spark: what concerns logins needs none."""

from __future__ import annotations

import base64
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.server import ServerProcess
from tidemill.dev.certificates import Certificates, make_certificates

# The password of mz_system.
ROOT = "root of all passwords"


class Guarded(ServerProcess):
    """A server that asks for passwords. `env` is more for its environment."""

    def __init__(self, folder: Path, env: Mapping[str, str] | None = None) -> None:
        self.certificates: Certificates = make_certificates(folder / "certificates")
        super().__init__(
            folder / "data",
            {"TIDEMILL_SYSTEM_PASSWORD": ROOT, "TIDEMILL_LOG_LEVEL": "debug", **(env or {})},
            ["--authentication", "password", "--tls-cert", str(self.certificates.server)],
        )
        self.spark = False

    def dsn(self, user: str, password: str) -> str:
        return (
            f"host=localhost hostaddr=127.0.0.1 port={self.sql_port} user={user} dbname=materialize "
            f"password='{password}' sslmode=verify-full sslrootcert={self.certificates.ca} connect_timeout=60"
        )

    @property
    def sql_dsn(self) -> str:
        return self.dsn("mz_system", ROOT)

    @property
    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.certificates.ca))

    def http(
        self, path: str, user: str | None = None, password: str = "", body: Any = None
    ) -> tuple[int, Any]:
        request = urllib.request.Request(f"https://localhost:{self.http_port}{path}")
        if user is not None:
            token = base64.b64encode(f"{user}:{password}".encode()).decode()
            request.add_header("Authorization", f"Basic {token}")
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=120, context=self.context) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as e:
            return e.code, e.read().decode()
