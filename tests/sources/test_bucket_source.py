"""The objects of a bucket as rows, over a real object store: the contract, listing, and what goes wrong."""

from __future__ import annotations

import gzip
import io
import json
import uuid
from collections.abc import Callable
from typing import Any

import fastavro
import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sources.conformance import CHECKS, Subject
from support.s3 import BUCKET, S3Server
from tidemill.engine.ddl.connection_kinds import CONNECTION_KINDS
from tidemill.sources.aws_role import frozen
from tidemill.sources.contract import Forgotten, UpstreamError, UpstreamLost, UpstreamSource
from tidemill.sources.definition import open_source
from tidemill.sources.objects import bucket as bucket_module
from tidemill.sources.objects.bucket import BucketListing, BucketStore, kept_bucket, open_bucket
from tidemill.sources.offsets import Offsets

pytestmark = pytest.mark.s3

TEXT: dict[str, Any] = {"format": "text"}


class Prefix:
    """A folder of the bucket for one test."""

    def __init__(self, server: S3Server) -> None:
        self.connection = server.connection
        self.name = uuid.uuid4().hex
        self.store = open_bucket(BUCKET, frozen(self.connection))

    def put(self, key: str, data: bytes) -> None:
        obstore.put(self.store, f"{self.name}/{key}", data)

    def delete(self, key: str) -> None:
        obstore.delete(self.store, f"{self.name}/{key}")

    def definition(self, form: dict[str, Any], **more: Any) -> dict[str, Any]:
        output = {"name": "o", "value": form, "include": more.pop("include", [])}
        output["envelope"] = more.pop("envelope", {"kind": "none"})
        found = {"kind": "s3", "connection": self.connection, "bucket": BUCKET, "compression": "auto"}
        return {**found, "matching": f"{self.name}/**", "outputs": [output], "started": 0, **more}

    def opened(self, form: dict[str, Any] = TEXT, **more: Any) -> UpstreamSource:
        return open_source(self.definition(form, **more))

    def offsets(self, **ends: int) -> Offsets:
        return Offsets({f"{self.name}/{key}": end for key, end in ends.items()})


@pytest.fixture
def prefix(s3_server: S3Server) -> Prefix:
    return Prefix(s3_server)


def rows(source: UpstreamSource, lower: Offsets, upper: Offsets, ways: int = 1) -> list[tuple[Any, ...]]:
    source.stamps(lower, upper)
    reader, pieces = source.plan(lower, upper, ways, frozenset({0}))
    found: list[tuple[Any, ...]] = []
    for piece in pieces:
        for batch in reader.read(piece):
            found += zip(*(column.to_pylist() for column in batch.rows.columns), strict=True)
    return sorted(found, key=str)


@pytest.fixture(scope="module")
def subject(s3_server: S3Server) -> Subject:
    made = Prefix(s3_server)
    made.put("1", b"".join(b"line %d\n" % n for n in range(20)))
    made.put("sub/2", b"a\n\nlast line")
    made.put("_temporary/3", b"no\n")
    include = [{"what": "key", "as": None}, {"what": "timestamp", "as": None}]
    return Subject("bucket", lambda: made.opened(include=include), (0, 1))


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
def test_a_bucket_conforms(check: Callable[[Subject], None], subject: Subject) -> None:
    check(subject)


def test_objects_are_found_and_read(prefix: Prefix) -> None:
    source = prefix.opened()
    assert source.frontier(0) == Offsets() and source.waits == f'bucket "{BUCKET}" has no objects yet'
    prefix.put("a", b"one\ntwo")
    prefix.put("b.gz", gzip.compress(b"three\n"))
    first = source.frontier(0)
    assert first[f"{prefix.name}/a"] == 7 and source.waits is None
    assert rows(source, Offsets(), first, 3) == [("one",), ("three",), ("two",)]
    prefix.put("0", b"before all\n")
    second = source.frontier(0)
    assert rows(source, first, second) == [("before all",)]
    # What was read may go; what comes again as it was is the same.
    prefix.delete("a")
    assert source.frontier(0) == second
    prefix.put("a", b"one\ntwo")
    assert source.frontier(0) == second


def test_an_object_that_is_another_is_an_error(prefix: Prefix) -> None:
    prefix.put("a", b"one\n")
    source = prefix.opened()
    upper = source.frontier(0)
    stamps = {str(key): text for key, text in source.stamps(Offsets(), upper).items()}
    reader, (piece,) = source.plan(Offsets(), upper, 1, frozenset({0}))
    prefix.put("a", b"ONE\n")
    with pytest.raises(Forgotten, match="is not what it was when it was bound") as caught:
        list(reader.read(piece))
    assert "Its ETag was" in str(caught.value.detail)
    later = prefix.opened()
    later.recall(upper, stamps)
    for found in (source, later):
        with pytest.raises(UpstreamLost, match="has changed since it was read") as changed:
            found.frontier(0)
        assert "It had 4 bytes and the ETag" in str(changed.value.detail)
    prefix.delete("a")
    with pytest.raises(Forgotten, match="is not what it was"):
        list(reader.read(piece))


def test_many_objects_are_listed_a_part_at_a_time(prefix: Prefix, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_module, "_PAGE", 10)
    for n in range(35):
        prefix.put(f"{n:03}", b"x\n")
    store = BucketStore(BUCKET, frozen(prefix.connection))
    listing = BucketListing(store, f"{prefix.name}/", lambda key: True)
    news = [len(listing.advance(0.0)) for _ in range(4)]
    assert news[:3] == [10, 10, 10] and sum(news) + len(listing.advance(0.0)) == 35 and listing.complete
    # Behind the last name at once, elsewhere when it is their turn.
    listing.advance(0.0)
    prefix.put("999", b"x\n")
    prefix.put("0001", b"x\n")
    assert list(listing.advance(0.0)) == [f"{prefix.name}/999"]
    found = [key for _ in range(10) for key in listing.advance(0.0)]
    assert found == [f"{prefix.name}/0001"]
    prefix.delete("005")
    assert [news for _ in range(10) for news in listing.advance(0.0).items()] == [
        (f"{prefix.name}/005", None)
    ]


def test_bad_contents_are_error_rows_that_name_the_object(prefix: Prefix) -> None:
    """What is readable before is there, and so are other objects."""
    avro = io.BytesIO()
    schema = fastavro.parse_schema({"type": "record", "name": "r", "fields": [{"name": "a", "type": "long"}]})
    fastavro.writer(avro, schema, [{"a": n} for n in range(2000)], sync_interval=500)
    parquet = io.BytesIO()
    pq.write_table(pa.table({"a": range(2000)}), parquet)
    columns = {"columns": [["a", "bigint"]]}
    csv = {"format": "csv", "columns": ["a", "b"], "delimiter": ",", "header": False}
    lines = b"".join(b"%d\n" % (n * 7919) for n in range(100_000))
    for form, name, data, said in (
        (TEXT, "bad.gz", gzip.compress(lines)[:-2000], "its gzip stream breaks off"),
        (csv, "bad.csv", b"1,2\n1,2,3\n", "csv deserialization error"),
        ({"format": "avro", **columns}, "bad.avro", avro.getvalue()[:-100], "it ends within the block"),
        ({"format": "parquet", **columns}, "bad.parquet", parquet.getvalue()[:-100], ""),
    ):
        prefix.put(f"{name}/{name}", data)
        source = prefix.opened(form, matching=f"{prefix.name}/{name}/*")
        upper = source.frontier(0)
        found = rows(source, Offsets(), upper)
        (error,) = [row[-1] for row in found if "Decode error: " in str(row[-1])]
        assert said in error and f'Object "{prefix.name}/{name}/{name}", byte ' in error
        assert len(found) > 1 or name == "bad.parquet"


@pytest.mark.parametrize(
    ("change", "primary", "transient"),
    [
        ({"bucket": "none-such"}, 'bucket "none-such" does not exist', False),
        ({"connection": {"secret_access_key": "wrong"}}, "the keys of the connection are refused", False),
        ({"connection": {"access_key_id": "nobody"}}, "the keys of the connection are refused", False),
        ({"connection": {"endpoint": "http://127.0.0.1:1"}}, "the object store cannot be reached", True),
    ],
)
def test_what_is_wrong_is_told(prefix: Prefix, change: dict[str, Any], primary: str, transient: bool) -> None:
    definition = prefix.definition(TEXT)
    for name, value in change.items():
        definition[name] = {**definition[name], **value} if isinstance(value, dict) else value
    source = open_source(json.loads(json.dumps(definition)))
    with pytest.raises(UpstreamError) as caught:
        source.frontier(0)
    assert (caught.value.primary, caught.value.transient) == (primary, transient)
    assert prefix.connection["secret_access_key"] not in str(caught.value)


def test_a_connection_is_checked(prefix: Prefix) -> None:
    kind = CONNECTION_KINDS["aws"]
    kind.check(prefix.connection)
    kind.reach(prefix.connection)
    with pytest.raises(UpstreamError, match="keys of the connection are refused"):
        kind.reach({**prefix.connection, "secret_access_key": "wrong"})


def test_the_servers_own_credentials_are_not_used(prefix: Prefix, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("access_key_id", "secret_access_key"):
        monkeypatch.setenv(f"AWS_{name.upper()}", prefix.connection[name])
    bare = {name: prefix.connection[name] for name in ("endpoint", "region")}
    source = prefix.opened(connection=bare)
    with pytest.raises(UpstreamError, match=r"is denied|are refused"):
        source.frontier(0)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "other")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    kept_bucket.cache_clear()
    assert prefix.opened().frontier(0) == Offsets()
