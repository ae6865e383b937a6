"""A bucket of S3, or of a server that speaks its protocol, as a store of objects.

An object is read only while it has the ETag that it was bound with. New objects are found by listing: page by
page in turn, a part with each call, and with each call what lies behind the last name, where writers that
name by date add. With a queue of notifications, the objects that it names are looked at with each call, and
everything is listed only now and then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from typing import Any, cast

import obstore
import pyarrow as pa
from obstore import exceptions
from obstore.store import S3Store

from tidemill.cdcv2.wording import sentence
from tidemill.sources.aws_request import KeySource
from tidemill.sources.aws_role import Options, frozen, key_source
from tidemill.sources.contract import Forgotten, UpstreamError
from tidemill.sources.objects.notifications import NotificationQueue
from tidemill.sources.objects.store import Listing, ObjectStat, Store, gone

CALLED = "object"
REQUEST_TIMEOUT, CONNECT_TIMEOUT = "30s", "5s"
RETRY_SECONDS = 5
# Objects of one answer to a list request, the most that S3 gives.
_PAGE = 1000
# With a queue of notifications, a turn over all objects begins so long after the last one.
SCAN_SECONDS = 600.0
# Stores that a worker keeps open.
_MAX_OPENED = 64


def open_bucket(bucket: str, options: Options) -> S3Store:
    """Raises UpstreamError where there are no keys for it."""
    keys = key_source(options)
    if keys is not None:
        keys.keys()
    return kept_bucket(bucket, options)


@lru_cache(maxsize=_MAX_OPENED)
def kept_bucket(bucket: str, options: Options) -> S3Store:
    given = dict(options)
    endpoint = given.get("endpoint") or f"https://s3.{given['region']}.amazonaws.com"
    config: dict[str, Any] = {"endpoint": endpoint, "region": given["region"]}
    config["virtual_hosted_style_request"] = False
    # Given as values, they would be mixed with those of the server's environment.
    source = key_source(options)
    if source is None:
        config["skip_signature"] = True
    client: dict[str, Any] = {"timeout": REQUEST_TIMEOUT, "connect_timeout": CONNECT_TIMEOUT}
    client["allow_http"] = endpoint.startswith("http://")
    return S3Store(
        bucket,
        config=cast("Any", config),
        client_options=cast("Any", client),
        retry_config={"retry_timeout": timedelta(seconds=RETRY_SECONDS)},
        credential_provider=None if source is None else cast("Any", lambda: _credential(source)),
    )


def _credential(source: KeySource) -> dict[str, Any]:
    """As obstore asks for it."""
    keys = source.keys()
    return {
        "access_key_id": keys.access,
        "secret_access_key": keys.secret,
        "token": keys.token,
        "expires_at": source.expires(),
    }


def reach(options: Mapping[str, Any]) -> None:
    """Whether the server answers, and knows the keys: any answer about a bucket will do that is no refusal of
    the keys."""
    try:
        next(iter(obstore.list(open_bucket("tidemill", frozen(options)))), None)
    except (exceptions.BaseError, OSError) as e:
        failed = failure(e, "tidemill")
        if failed.primary.startswith(("bucket", "access to bucket")):
            return
        raise failed from None


# What S3 says of a request in the body of its answer, and what that means.
_KEYS = ("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken", "AuthorizationHeader")


def failure(error: Exception, bucket: str) -> UpstreamError:
    text = str(error)
    if "NoSuchBucket" in text:
        found = UpstreamError(
            f'bucket "{bucket}" does not exist', hint="Check its name and the connection.", sqlstate="42704"
        )
    elif any(code in text for code in _KEYS):
        found = UpstreamError(
            "the keys of the connection are refused",
            detail=_code(text),
            hint="Check ACCESS KEY ID, SECRET ACCESS KEY and REGION.",
            sqlstate="28000",
        )
    elif "403 Forbidden" in text or "AccessDenied" in text:
        found = UpstreamError(
            f'access to bucket "{bucket}" is denied',
            detail=_code(text),
            hint="The keys need s3:ListBucket and s3:GetObject.",
            sqlstate="42501",
        )
    else:
        found = UpstreamError(
            "the object store cannot be reached", detail=_code(text), hint="It is tried again by itself."
        )
        found.transient = True
    return found


def _code(text: str) -> str:
    """What a server said, without the long rest."""
    code, message = _between(text, "<Code>", "</Code>"), _between(text, "<Message>", "</Message>")
    said = f"{code}: {message}" if code and message else code or text.splitlines()[0][:300]
    return sentence(Exception(said))


def _between(text: str, before: str, behind: str) -> str:
    return text.partition(before)[2].partition(behind)[0].strip()[:300]


@dataclass(frozen=True, slots=True)
class BucketStore(Store):
    bucket: str
    options: Options = field(repr=False)
    called = CALLED

    def stat(self, key: str) -> ObjectStat:
        try:
            found = obstore.head(open_bucket(self.bucket, self.options), key)
        except FileNotFoundError:
            raise gone(CALLED, key, 0, 0, "It is not there any more.") from None
        except (exceptions.BaseError, OSError) as e:
            raise failure(e, self.bucket) from e
        modified = int(found["last_modified"].timestamp() * 1_000_000)
        return ObjectStat(found["size"], modified, found["e_tag"] or "")

    def read(self, key: str, print_: str, lower: int, upper: int) -> bytes:
        if lower == upper:
            return b""
        options: dict[str, Any] = {"range": (lower, upper)}
        if print_:
            options["if_match"] = print_
        try:
            answer = obstore.get(open_bucket(self.bucket, self.options), key, options=cast("Any", options))
            data = bytes(answer.bytes())
        except FileNotFoundError:
            raise gone(CALLED, key, lower, upper, "It is not there any more.") from None
        except exceptions.PreconditionError:
            raise gone(CALLED, key, lower, upper, f"Its ETag was {print_}, and is another now.") from None
        except (exceptions.BaseError, OSError) as e:
            raise failure(e, self.bucket) from e
        if len(data) != upper - lower:
            raise gone(CALLED, key, lower, upper, f"It has {lower + len(data)} bytes now.")
        return data


class BucketListing(Listing):
    def __init__(
        self,
        store: BucketStore,
        prefix: str,
        wanted: Callable[[str], bool],
        queue: NotificationQueue | None = None,
    ) -> None:
        super().__init__()
        self._store = store
        self._prefix = prefix
        self._wanted = wanted
        self._queue = queue
        # When the last turn ended.
        self._turned = float("-inf")
        # The pages of the present turn, and the objects that it has seen.
        self._pages: Iterator[Any] | None = None
        self._seen: set[str] = set()
        self._last = ""

    def advance(self, seconds: float) -> Mapping[str, ObjectStat | None]:
        deadline = time.monotonic() + seconds
        news: dict[str, ObjectStat | None] = {}
        try:
            if self._queue is not None and self.complete:
                self._hear(self._queue, seconds, news)
                if self._pages is None and time.monotonic() - self._turned < SCAN_SECONDS:
                    return news
            if self._pages is None:
                self._pages, self._seen = self._list(None), set()
            for page in self._pages:
                self._note_page(page, news)
                if time.monotonic() >= deadline:
                    break
            else:
                self._pages = None
                for key in self.found.keys() - self._seen:
                    del self.found[key]
                    news[key] = None
                self.complete = True
                self._turned = time.monotonic()
                return news
            if self.complete and self._queue is None:
                # Others wait for their turn, those behind the last name do not.
                for page in self._list(self._last):
                    self._note_page(page, news)
        except (exceptions.BaseError, OSError) as e:
            self._pages = None
            for key in news:
                # They are told again.
                self.found.pop(key, None)
            raise failure(e, self._store.bucket) from e
        return news

    def _hear(self, queue: NotificationQueue, seconds: float, news: dict[str, ObjectStat | None]) -> None:
        """Look at what the queue names. Where that fails, everything is listed at once."""
        turned, self._turned = self._turned, float("-inf")
        try:
            for key in queue.take(seconds):
                if not (key.startswith(self._prefix) and self._wanted(key)):
                    continue
                try:
                    stat = self._store.stat(key)
                except Forgotten:
                    # It is gone again.
                    continue
                self._seen.add(key)
                if self.note(key, stat):
                    news[key] = stat
        except UpstreamError:
            for key in news:
                # They are told again.
                self.found.pop(key, None)
            raise
        self._turned = turned

    def _list(self, behind: str | None) -> Iterator[Any]:
        store = open_bucket(self._store.bucket, self._store.options)
        return iter(
            obstore.list(
                store, self._prefix or None, offset=behind or None, chunk_size=_PAGE, return_arrow=True
            )
        )

    def _note_page(self, page: Any, news: dict[str, ObjectStat | None]) -> None:
        batch = pa.record_batch(page)
        keys = cast("list[str]", batch.column("path").to_pylist())
        sizes = batch.column("size").to_pylist()
        tags = batch.column("e_tag").to_pylist()
        times = batch.column("last_modified").cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
        for key, size, tag, modified in zip(keys, sizes, tags, times, strict=True):
            if not self._wanted(key):
                continue
            self._seen.add(key)
            stat = ObjectStat(size, modified, tag or "")
            if self.note(key, stat):
                news[key] = stat
        if keys:
            self._last = max(self._last, keys[-1])
