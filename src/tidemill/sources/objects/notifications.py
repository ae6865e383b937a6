"""Notifications: a queue of SQS that tells which objects a bucket has got.

Called by the listing of a bucket with each tick. What is told is looked at once, by name; a notification that
is lost, comes twice or late changes nothing: listing finds the same objects, later.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import unquote_plus

from tidemill.cdcv2.wording import sentence
from tidemill.sources.aws_request import NO_ANSWER, AwsService
from tidemill.sources.aws_role import key_source
from tidemill.sources.contract import UpstreamError

_SERVICE = "sqs"
REQUEST_SECONDS = 5.0
# Messages of one answer: the most that SQS gives, of 1 MB at most.
_PAGE = 10
MAX_ANSWER_BYTES = 32 << 20
# How long a message that is received stays unseen by others, if it is not deleted.
_UNSEEN_SECONDS = 60


class NotificationQueue:
    """`queue` is a name in the connection's region and account, or a URL. One thread at a time."""

    def __init__(self, queue: str, bucket: str, options: Mapping[str, str]) -> None:
        self.queue = queue
        self._bucket = bucket
        self._url = queue if "://" in queue else None
        at = options if self._url is None else {**options, "endpoint": self._url}
        keys = key_source(tuple(options.items()))
        self._service = AwsService(_SERVICE, at, keys, REQUEST_SECONDS, MAX_ANSWER_BYTES)

    def check(self) -> None:
        """Raises UpstreamError if it cannot be read."""
        self._call("GetQueueAttributes", {"QueueUrl": self._address(), "AttributeNames": ["QueueArn"]})

    def take(self, seconds: float) -> set[str]:
        """The names of objects that were created, at least one answer; they are not told again. Raises
        UpstreamError."""
        deadline = time.monotonic() + seconds
        names: set[str] = set()
        while True:
            asked = {
                "QueueUrl": self._address(),
                "MaxNumberOfMessages": _PAGE,
                "WaitTimeSeconds": 0,
                "VisibilityTimeout": _UNSEEN_SECONDS,
            }
            found = self._call("ReceiveMessage", asked).get("Messages")
            messages = cast("list[dict[str, str]]", found or [])
            if not messages:
                return names
            for message in messages:
                names |= created(message["Body"], self._bucket)
            entries = [
                {"Id": str(at), "ReceiptHandle": message["ReceiptHandle"]}
                for at, message in enumerate(messages)
            ]
            self._call("DeleteMessageBatch", {"QueueUrl": self._address(), "Entries": entries})
            if time.monotonic() >= deadline:
                return names

    def _address(self) -> str:
        if self._url is None:
            self._url = str(self._call("GetQueueUrl", {"QueueName": self.queue})["QueueUrl"])
        return self._url

    def _call(self, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        body = json.dumps(request).encode()
        headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": f"AmazonSQS.{operation}"}
        try:
            answer = self._service.post(headers, body)
        except NO_ANSWER as e:
            raise self._failed("cannot be reached", sentence(e)) from None
        status = answer.status
        try:
            said: Any = json.loads(answer.body or b"{}")
        except ValueError:
            said = None
        if status == HTTPStatus.OK and isinstance(said, dict):
            return cast("dict[str, Any]", said)
        fields = cast("dict[str, Any]", said) if isinstance(said, dict) else {}
        code = str(fields.get("__type", "")).rpartition("#")[2] or str(status)
        message = fields.get("message") or fields.get("Message")
        detail = f"{code}: {str(message)[:300].removesuffix('.')}." if message else f"{code}."
        if "NonExistentQueue" in code or "QueueDoesNotExist" in code:
            raise UpstreamError(
                f'queue "{self.queue}" does not exist',
                detail=detail,
                hint="Check SQS NOTIFICATIONS and the region of the connection.",
                sqlstate="42704",
            )
        if status in (401, 403):
            raise UpstreamError(
                f'access to queue "{self.queue}" is denied',
                detail=detail,
                hint="The keys need sqs:GetQueueUrl, sqs:GetQueueAttributes, sqs:ReceiveMessage and "
                "sqs:DeleteMessage.",
                sqlstate="42501",
            )
        raise self._failed("cannot be read", detail)

    def _failed(self, how: str, detail: str) -> UpstreamError:
        error = UpstreamError(
            f'queue "{self.queue}" {how}', detail=detail, hint="It is tried again by itself."
        )
        error.transient = True
        return error


def created(body: str, bucket: str) -> set[str]:
    """The objects that a message names: of S3, also through SNS, or of EventBridge. Other messages name
    none."""
    try:
        said: Any = json.loads(body)
        if isinstance(said, dict) and isinstance(said.get("Message"), str):  # pyright: ignore[reportUnknownMemberType]
            said = json.loads(said["Message"])  # pyright: ignore[reportUnknownArgumentType]
        if not isinstance(said, dict):
            return set()
        fields = cast("dict[str, Any]", said)
        if fields.get("detail-type") == "Object Created":
            detail = fields["detail"]
            return {str(detail["object"]["key"])} if detail["bucket"]["name"] == bucket else set()
        return {
            unquote_plus(str(record["s3"]["object"]["key"]))
            for record in fields.get("Records") or []
            if str(record["eventName"]).removeprefix("s3:").startswith("ObjectCreated")
            and record["s3"]["bucket"]["name"] == bucket
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        # Anybody may write into a queue; listing finds what it meant.
        return set()
