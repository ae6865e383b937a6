"""Blob stores: one protocol for the files of shards, in a folder or under an s3:// prefix.

Used only inside `persist`; no other package accesses files. Paths are relative to the root of the store and
use `/`.

Promises: data survives a power cut once `put` or `put_if_absent` returns. No reader sees a partial object
written by `put_if_absent`. A failed write raises `BlobFailed` if nothing was written, or `BlobUnknown` if the
write may have happened. Stores are thread-safe and picklable, so Spark tasks can carry them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from tidemill.errors import InvalidValue, TidemillError


class BlobError(TidemillError):
    """Base class of the errors that a store raises."""


class BlobMissing(BlobError):
    """The object does not exist."""

    sqlstate = "58P01"


class BlobExists(BlobError):
    """`put_if_absent` was refused: the path is taken (maybe by our own earlier try: the caller looks)."""

    sqlstate = "58P02"


class BlobFailed(BlobError):
    """The call failed and changed nothing that a reader can see."""

    sqlstate = "58030"
    transient = True


class BlobUnknown(BlobError):
    """The write may or may not have happened, now or later."""

    sqlstate = "58030"
    transient = True


@dataclass(frozen=True, slots=True)
class BlobInfo:
    """An object as a listing shows it; `modified` in seconds since the Unix epoch, by the store's clock."""

    path: str
    size: int
    modified: float


class Blobs(Protocol):
    """One store. All calls are synchronous."""

    @property
    def url(self) -> str:
        """What `open_blobs` was given, normalised: names the store in caches and messages."""
        ...

    @property
    def overlap(self) -> int:
        """How many reads are worth making at once (1: none)."""
        ...

    def put(self, path: str, data: bytes | memoryview | pa.Buffer) -> None:
        """Write a new object durably. The path must be new and unguessable: nothing guards against a
        second writer."""
        ...

    def put_if_absent(self, path: str, data: bytes) -> None:
        """Write the object whole and durably, or raise `BlobExists` and change nothing."""
        ...

    def get(self, path: str) -> bytes: ...

    def get_many(self, paths: Sequence[str]) -> list[bytes]:
        """As `get` for each, overlapped where the store has latency; raises the first error."""
        ...

    def open(self, path: str, expected: int) -> pa.NativeFile:
        """A seekable reader whose `size()` is the size of the object. `expected` is the size according to the
        log: a store with latency fetches small objects whole."""
        ...

    def size(self, path: str) -> int: ...

    def list(self, prefix: str) -> list[BlobInfo]:
        """Everything under a folder, recursively, sorted by path; temporary files of this store are left
        out."""
        ...

    def folders(self, prefix: str) -> list[str]:
        """The names of the folders right under a folder, sorted; none where it is not there."""
        ...

    def delete(self, paths: Sequence[str]) -> None:
        """Delete objects. A missing object is not an error."""
        ...

    def delete_prefix(self, prefix: str) -> None:
        """Delete a folder with all that is in it; idempotent."""
        ...

    def tidy(self, prefix: str, older_than: float) -> int:
        """Delete temporary files and empty folders under a folder, left behind before that time; returns
        how many."""
        ...

    def sync(self, paths: Sequence[str]) -> None:
        """Make objects durable that another writer (delta-rs) put into the store."""
        ...

    def table_uri(self, path: str) -> tuple[str, dict[str, str]]:
        """A folder in the form that delta-rs requires: the URI and the storage options."""
        ...


def open_blobs(url: str, options: Mapping[str, str] | None = None) -> Blobs:
    """Open a store: a folder (a plain path or file://) or `s3://bucket/prefix` with obstore's option names
    (`endpoint`, `region`, `access_key_id`, `secret_access_key`, `allow_http`, ...)."""
    # Imported here: a folder needs no S3 client, and start-up time counts.
    if url.startswith("s3://"):
        from tidemill.persist.s3 import S3Blobs

        return S3Blobs(url, dict(options or {}))
    from tidemill.persist.local import LocalBlobs

    if url.startswith("file://"):
        url = url.removeprefix("file://")
    if "://" in url:
        raise InvalidValue(
            f'cannot keep data at "{url}"', hint="Use a folder or s3://bucket/prefix.", sqlstate="22023"
        )
    return LocalBlobs(url)
