"""Notifications of a bucket in a queue of SQS, over a server of both: objects are found by them, and without
them too."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from support.moto import KEYS, START_SECONDS, Moto
from tidemill.sources.aws_signature import AwsKeys, signed_headers
from tidemill.sources.contract import UpstreamError
from tidemill.sources.definition import open_source
from tidemill.sources.objects import bucket as bucket_module
from tidemill.sources.objects.notifications import NotificationQueue, created
from tidemill.sources.offsets import Offsets

ACCOUNT = "123456789012"


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Moto]:
    program = Moto(tmp_path_factory.mktemp("moto"))
    program.start()
    try:
        yield program
    finally:
        program.stop()


class Told:
    """A bucket that tells a queue of what it gets."""

    def __init__(self, moto: Moto) -> None:
        self.name = uuid.uuid4().hex
        self.s3, self.sqs = moto.client("s3"), moto.client("sqs")
        self.s3.create_bucket(Bucket=self.name)
        self.queue: str = self.sqs.create_queue(QueueName=self.name)["QueueUrl"]
        arn = f"arn:aws:sqs:{KEYS['region']}:{ACCOUNT}:{self.name}"
        told = [{"QueueArn": arn, "Events": ["s3:ObjectCreated:*"]}]
        self.s3.put_bucket_notification_configuration(
            Bucket=self.name, NotificationConfiguration={"QueueConfigurations": told}
        )
        self.definition: dict[str, Any] = {
            "kind": "s3",
            "connection": {**KEYS, "endpoint": moto.endpoint},
            "bucket": self.name,
            "matching": "in/**",
            "compression": "auto",
            "queue": self.name,
            "outputs": [
                {"name": "o", "value": {"format": "text"}, "include": [], "envelope": {"kind": "none"}}
            ],
            "started": 0,
        }

    def put(self, key: str, data: bytes = b"x\n") -> None:
        self.s3.put_object(Bucket=self.name, Key=key, Body=data)

    def waiting(self) -> int:
        found = self.sqs.get_queue_attributes(
            QueueUrl=self.queue,
            AttributeNames=["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"],
        )
        return sum(int(count) for count in found["Attributes"].values())


@pytest.fixture
def told(moto: Moto, monkeypatch: pytest.MonkeyPatch) -> Told:
    return Told(moto)


def test_objects_are_found_by_what_the_queue_tells(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those before the last name, without listing anything."""
    told.put("in/5")
    source = open_source(told.definition)
    assert source.frontier(0) == Offsets({"in/5": 2})
    lists: list[str | None] = []
    real = bucket_module.BucketListing._list  # pyright: ignore[reportPrivateUsage]

    def listed(listing: bucket_module.BucketListing, behind: str | None) -> Any:
        lists.append(behind)
        return real(listing, behind)

    monkeypatch.setattr(bucket_module.BucketListing, "_list", listed)
    for n in range(25):
        told.put(f"in/0 ü+{n}", b"x" * n + b"\n")
    told.put("out/1")
    wanted = Offsets({"in/5": 2, **{f"in/0 ü+{n}": n + 1 for n in range(25)}})
    deadline = time.monotonic() + START_SECONDS
    while source.frontier(0) != wanted:
        assert time.monotonic() < deadline, source.frontier(0)
    assert lists == [] and told.waiting() == 0
    # What listing says of an object is what looking at it by name said.
    source.stamps(Offsets(), wanted)
    monkeypatch.setattr(bucket_module, "SCAN_SECONDS", 0.0)
    assert source.frontier(0) == wanted and lists
    again = open_source(told.definition)
    again.recall(wanted, {str(k): v for k, v in source.stamps(Offsets(), wanted).items()})
    assert again.frontier(0) == wanted


def test_what_the_queue_loses_is_found(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    """Notifications that nobody got, that are none, and of objects that are gone."""
    source = open_source(told.definition)
    assert source.frontier(0) == Offsets()
    told.put("in/lost")
    told.sqs.purge_queue(QueueUrl=told.queue)
    for body in ("no JSON", "[1]", json.dumps({"Event": "s3:TestEvent"}), json.dumps({"Records": [{}]})):
        told.sqs.send_message(QueueUrl=told.queue, MessageBody=body)
    told.put("in/gone")
    told.s3.delete_object(Bucket=told.name, Key="in/gone")
    assert source.frontier(0) == Offsets() and told.waiting() == 0
    monkeypatch.setattr(bucket_module, "SCAN_SECONDS", 0.0)
    assert source.frontier(0) == Offsets({"in/lost": 2})


def test_a_queue_that_fails_is_an_error_and_nothing_is_lost(told: Told, moto: Moto) -> None:
    source = open_source(told.definition)
    assert source.frontier(0) == Offsets()
    told.put("in/1")
    told.sqs.delete_queue(QueueUrl=told.queue)
    with pytest.raises(UpstreamError, match=f'queue "{told.name}" does not exist') as caught:
        source.frontier(0)
    assert caught.value.sqlstate == "42704"
    told.sqs.create_queue(QueueName=told.name)
    # Everything is listed: what was told meanwhile is not known.
    assert source.frontier(0) == Offsets({"in/1": 2})
    with pytest.raises(UpstreamError, match="does not exist"):
        NotificationQueue("none-such", told.name, told.definition["connection"]).check()
    NotificationQueue(told.queue, told.name, told.definition["connection"]).check()
    away = {**KEYS, "endpoint": "http://127.0.0.1:1"}
    with pytest.raises(UpstreamError, match=r'queue "q" cannot be reached') as unreachable:
        NotificationQueue("q", told.name, away).take(0.0)
    assert unreachable.value.transient


def test_every_form_of_a_notification() -> None:
    record = {"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": "b"}, "object": {"key": "a+b%2B"}}}
    s3 = json.dumps({"Records": [record, {**record, "eventName": "ObjectRemoved:Delete"}]})
    assert created(s3, "b") == {"a b+"}
    assert created(s3, "other") == set()
    assert created(json.dumps({"Type": "Notification", "Message": s3}), "b") == {"a b+"}
    detail = {"bucket": {"name": "b"}, "object": {"key": "a+b"}}
    assert created(json.dumps({"detail-type": "Object Created", "detail": detail}), "b") == {"a+b"}
    for other in ("", "null", "1", '{"Records": 1}', '{"Message": "x"}'):
        assert created(other, "b") == set()


@pytest.mark.parametrize("token", [None, "a token"])
def test_signatures_are_those_of_botocore(token: str | None) -> None:
    keys = AwsKeys(KEYS["access_key_id"], KEYS["secret_access_key"], token)
    headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": "AmazonSQS.ReceiveMessage"}
    body = b'{"QueueUrl": "http://q"}'
    request = AWSRequest("POST", "https://sqs.eu-west-1.amazonaws.com/", headers, body)
    credentials = Credentials(keys.access, keys.secret, token)
    SigV4Auth(credentials, "sqs", "eu-west-1").add_auth(request)
    now = datetime.strptime(request.context["timestamp"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    host = "sqs.eu-west-1.amazonaws.com"
    mine = signed_headers(keys, "eu-west-1", "sqs", host, headers, body, now)
    assert mine["Authorization"] == request.headers["Authorization"]
