"""Client of Kinesis: requests of the service's JSON protocol.

Called by the receiver and by statements on the driver, and by readers in the tasks. It needs four requests,
without botocore, which makes Python objects of each record.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from functools import lru_cache
from http import HTTPStatus
from typing import Any

from tidemill.sources.aws_request import NO_ANSWER, AwsService
from tidemill.sources.aws_role import Options, frozen, key_source
from tidemill.sources.contract import UpstreamError
from tidemill.sources.kinesis.failures import Expired, NoStream, Throttled, failure, unreachable

SERVICE = "kinesis"
_TARGET = "Kinesis_20131202."
_JSON = "application/x-amz-json-1.1"
REQUEST_SECONDS = 30.0
# The largest answer of GetRecords is 10 MB of data, as base64, with its keys.
MAX_ANSWER_BYTES = 64 << 20
# Answers that say "later": how often they are asked again, and after how long at first and at last.
RETRIES = 8
FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 0.1, 2.0
# Clients that a worker keeps open.
_MAX_OPENED = 16


class KinesisClient:
    """Thread-safe."""

    def __init__(self, options: Options) -> None:
        self._service = AwsService(
            SERVICE, dict(options), key_source(options), REQUEST_SECONDS, MAX_ANSWER_BYTES
        )
        self.endpoint = self._service.url
        # The time of the service at its last answer, in milliseconds; None before.
        self.server_ms: int | None = None

    def call(self, operation: str, stream: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer. Raises UpstreamError; `stream` is for its text."""
        return json.loads(self.raw(operation, stream, request) or b"{}")

    def patient(self, operation: str, stream: str, request: Mapping[str, Any]) -> dict[str, Any]:
        return json.loads(self.patient_raw(operation, stream, request) or b"{}")

    def patient_raw(self, operation: str, stream: str, request: Mapping[str, Any]) -> bytes:
        """As `raw`, asked again for some seconds while the service says that it is asked too often."""
        pause = FIRST_PAUSE_SECONDS
        for _ in range(RETRIES):
            try:
                return self.raw(operation, stream, request)
            except Throttled:
                time.sleep(pause)
                pause = min(2 * pause, LAST_PAUSE_SECONDS)
        return self.raw(operation, stream, request)

    def raw(self, operation: str, stream: str, request: Mapping[str, Any]) -> bytes:
        """The answer as it came."""
        body = json.dumps(request).encode()
        headers = {"Content-Type": _JSON, "X-Amz-Target": _TARGET + operation}
        try:
            answer = self._service.post(headers, body)
        except NO_ANSWER as e:
            raise unreachable(self.endpoint, e) from None
        if answer.date is not None:
            self.server_ms = int(parsedate_to_datetime(answer.date).timestamp() * 1000)
        if answer.status != HTTPStatus.OK:
            raise failure(answer.status, answer.body, stream)
        return answer.body


@lru_cache(maxsize=_MAX_OPENED)
def open_client(options: Options) -> KinesisClient:
    """A client that is kept in the process."""
    return KinesisClient(options)


def reach(options: Mapping[str, Any]) -> None:
    """Whether the service answers, and knows the keys: any answer about a stream will do that is no refusal
    of the keys."""
    try:
        open_client(frozen(options)).call("ListShards", "tidemill", {"StreamName": "tidemill"})
    except (NoStream, Expired, Throttled):
        return
    except UpstreamError as e:
        if e.sqlstate != "42501":
            raise
