"""A store of each kind: what holds on a folder must hold on S3."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.s3 import S3Server
from tidemill import failpoints
from tidemill.persist.blob import Blobs, open_blobs


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.s3)])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Blobs:
    """Every test that takes this runs on both stores."""
    if request.param == "folder":
        return open_blobs(str(tmp_path / "data"))
    server: S3Server = request.getfixturevalue("s3_server")
    return open_blobs(server.fresh_url(), server.options)


@pytest.fixture
def folder(tmp_path: Path) -> Blobs:
    return open_blobs(str(tmp_path / "data"))


@pytest.fixture(autouse=True)
def disarmed() -> object:
    """No failpoint survives its test."""
    yield
    failpoints.arm("")
    return None
