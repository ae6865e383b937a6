"""Whether the server of this container answers: status 0 or 1. For HEALTHCHECK; asks /healthz at the port of
TIDEMILL_HTTP_ADDR, with TLS if the server has it."""

from __future__ import annotations

import os
import ssl
import sys
import urllib.request

SECONDS = 4


def main() -> int:
    port = os.environ.get("TIDEMILL_HTTP_ADDR", "127.0.0.1:6876").rpartition(":")[2]
    scheme, context = "http", None
    if os.environ.get("TIDEMILL_TLS_CERT"):
        # The name in the certificate is not that of the loopback address; nothing secret is sent.
        scheme, context = "https", ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with urllib.request.urlopen(
            f"{scheme}://127.0.0.1:{port}/healthz", timeout=SECONDS, context=context
        ) as answer:
            return 0 if answer.status == 200 else 1
    except OSError as e:
        print(e, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
