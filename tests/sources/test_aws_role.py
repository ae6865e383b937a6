"""The role of an AWS connection, over a server that checks keys and rights."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from support.moto import KEYS, Moto
from tidemill.sources import aws_role
from tidemill.sources.aws_role import frozen, key_source
from tidemill.sources.contract import UpstreamError
from tidemill.sources.definition import open_source
from tidemill.sources.objects.bucket import reach
from tidemill.sources.offsets import Offsets

READ = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": ["s3:*"], "Resource": "*"}]}
ASSUME = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "sts:*", "Resource": "*"}]}
ANYBODY = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "sts:AssumeRole"}],
}


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Options whose keys may do nothing but assume the role, which may read a bucket."""
    moto = Moto(tmp_path_factory.mktemp("moto"))
    moto.start()
    try:
        iam = moto.client("iam")
        iam.create_user(UserName="reader")
        iam.put_user_policy(UserName="reader", PolicyName="p", PolicyDocument=json.dumps(ASSUME))
        made = iam.create_access_key(UserName="reader")["AccessKey"]
        role = iam.create_role(RoleName="objects", AssumeRolePolicyDocument=json.dumps(ANYBODY))["Role"]
        iam.put_role_policy(RoleName="objects", PolicyName="p", PolicyDocument=json.dumps(READ))
        s3 = moto.client("s3")
        s3.create_bucket(Bucket="objects")
        s3.put_object(Bucket="objects", Key="o", Body=b"one\n")
        moto.enforce()
        yield {
            "region": KEYS["region"],
            "endpoint": moto.endpoint,
            "access_key_id": made["AccessKeyId"],
            "secret_access_key": made["SecretAccessKey"],
            "role_arn": role["Arn"],
        }
    finally:
        moto.stop()


def opened(connection: dict[str, str]) -> Any:
    output = {"name": "o", "value": {"format": "text"}, "include": [], "envelope": {"kind": "none"}}
    definition = {"kind": "s3", "connection": connection, "bucket": "objects", "matching": None}
    return open_source({**definition, "compression": "auto", "outputs": [output], "started": 0})


def test_a_bucket_is_read_with_the_keys_of_the_role(connection: dict[str, str]) -> None:
    source = opened(connection)
    try:
        assert source.frontier(0) == Offsets({"o": 4})
    finally:
        source.close()
    reach(connection)
    own = {name: value for name, value in connection.items() if name != "role_arn"}
    with pytest.raises(UpstreamError, match='access to bucket "objects" is denied'):
        opened(own).frontier(0)


def test_keys_are_kept_until_shortly_before_they_expire(
    connection: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    role = key_source(frozen({**connection, "role_session": uuid.uuid4().hex}))
    assert role is not None
    keys, until = role.keys(), role.expires()
    assert keys.token and keys.secret not in repr(keys)
    assert until is not None and until.timestamp() > time.time() + 3000
    assert role.keys() is keys
    monkeypatch.setattr(aws_role, "RENEW_SECONDS", 7200.0)
    assert role.keys() != keys


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"secret_access_key": "wrong"}, "cannot be assumed with the keys of the connection"),
        ({"access_key_id": "AKIAUNKNOWNUNKNOWN"}, "cannot be assumed with the keys of the connection"),
        ({"endpoint": "http://127.0.0.1:9"}, "cannot be assumed now"),
    ],
)
def test_errors(connection: dict[str, str], changed: dict[str, str], words: str) -> None:
    with pytest.raises(UpstreamError, match=words) as failed:
        opened({**connection, **changed}).frontier(0)
    assert failed.value.transient == (words == "cannot be assumed now")
