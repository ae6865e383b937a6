"""One server without Spark for what needs none: tables that are written and followed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.server import ServerProcess


@pytest.fixture(scope="package")
def plain_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Never stop or reconfigure it."""
    server = ServerProcess(tmp_path_factory.mktemp("client") / "data")
    server.spark = False
    try:
        yield server.start()
    finally:
        server.close()
