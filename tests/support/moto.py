"""Moto's server: a part of Amazon's services on this machine."""

from __future__ import annotations

import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import boto3

from tidemill.dev.process import HOST, LocalProgram, pick_ports

KEYS = {"region": "us-east-1", "access_key_id": "AKIDEXAMPLE", "secret_access_key": "secret/key"}
START_SECONDS = 120.0


class Moto(LocalProgram):
    """Moto's server: S3, SQS, and the notifications of the one in the other."""

    def __init__(self, folder: Path) -> None:
        super().__init__("moto", folder, "moto.log")
        (self.port,) = pick_ports(1)
        self.endpoint = f"http://{HOST}:{self.port}"

    def start(self) -> None:
        program = str(Path(sys.executable).with_name("moto_server"))
        self._launch([program, "-H", HOST, "-p", str(self.port)])
        self._wait_ready(self._answers, START_SECONDS)

    def _answers(self) -> bool:
        with urllib.request.urlopen(f"{self.endpoint}/moto-api/data.json", timeout=5.0) as answer:
            return answer.status == 200

    def client(self, service: str, keys: Mapping[str, str] = KEYS) -> Any:
        return boto3.client(  # pyright: ignore[reportUnknownMemberType]
            service,
            endpoint_url=self.endpoint,
            region_name=KEYS["region"],
            aws_access_key_id=keys["access_key_id"],
            aws_secret_access_key=keys["secret_access_key"],
            aws_session_token=keys.get("session_token"),
        )

    def enforce(self) -> None:
        """From now on requests need keys that it has made, and rights."""
        request = urllib.request.Request(
            f"{self.endpoint}/moto-api/reset-auth", b"0", {"Content-Type": "text/plain"}
        )
        urllib.request.urlopen(request, timeout=5.0).close()
