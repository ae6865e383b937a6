"""Blob store under an s3:// prefix, through obstore.

The conditional PUT of the store (`If-None-Match: *`) implements put-if-absent. A PUT is complete and durable
when it returns. If it does not return, its outcome is unknown. obstore retries requests, so even a refusal
may follow our own success: the caller must check.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any, cast

import obstore
import pyarrow as pa
from obstore import exceptions
from obstore.store import S3Store

from tidemill import failpoints
from tidemill.persist.blob import BlobError, BlobExists, BlobFailed, BlobInfo, BlobMissing, BlobUnknown
from tidemill.persist.local import FP_ENTRY_DIR_SYNCED, FP_ENTRY_TEMP_WRITTEN, FP_PART_BEFORE_FSYNC

# A request that takes longer is given up and, where it was a write, resolved by the committer.
REQUEST_TIMEOUT = "30s"
CONNECT_TIMEOUT = "5s"
# How long obstore retries failing requests before it reports them.
RETRY_SECONDS = 5

# Requests in flight at once for reads of many objects.
_OVERLAP = 16
# Objects up to this size are fetched whole: one request instead of one for the size, one for the footer and
# one per column.
_WHOLE_BYTES = 8 << 20
# Deletes of one request, the most that S3 takes.
_DELETE_BATCH = 1000

# obstore's option -> delta-rs's.
_DELTA_OPTIONS = {
    "endpoint": "AWS_ENDPOINT_URL",
    "region": "AWS_REGION",
    "access_key_id": "AWS_ACCESS_KEY_ID",
    "secret_access_key": "AWS_SECRET_ACCESS_KEY",
    "session_token": "AWS_SESSION_TOKEN",
    "allow_http": "AWS_ALLOW_HTTP",
    "virtual_hosted_style_request": "AWS_VIRTUAL_HOSTED_STYLE_REQUEST",
}


class S3Blobs:
    """See the module. Options are obstore's; credentials may also be set in the environment."""

    def __init__(self, url: str, options: dict[str, str]) -> None:
        self._url = url.rstrip("/")
        self._options = options
        bucket, _, prefix = self._url.removeprefix("s3://").partition("/")
        self._prefix = prefix
        config: dict[str, Any] = {k: v for k, v in options.items() if k != "allow_http"}
        client: dict[str, Any] = {"timeout": REQUEST_TIMEOUT, "connect_timeout": CONNECT_TIMEOUT}
        if options.get("allow_http", "").lower() == "true":
            client["allow_http"] = True
        self._store = S3Store(
            bucket,
            prefix=prefix or None,
            config=cast("Any", config),
            client_options=cast("Any", client),
            retry_config={"retry_timeout": timedelta(seconds=RETRY_SECONDS)},
        )

    def __reduce__(self) -> tuple[type[S3Blobs], tuple[str, dict[str, str]]]:
        return (S3Blobs, (self._url, self._options))

    @property
    def url(self) -> str:
        return self._url

    @property
    def overlap(self) -> int:
        return _OVERLAP

    def put(self, path: str, data: bytes | memoryview | pa.Buffer) -> None:
        try:
            failpoints.hit(FP_PART_BEFORE_FSYNC)
            obstore.put(self._store, path, memoryview(data).cast("B"))
        except (exceptions.BaseError, OSError) as error:
            # A part that did arrive is an orphan: no entry names it.
            raise BlobFailed(
                f'could not write "{self._url}/{path}"', detail=_first_line(error), hint=_HINT
            ) from error

    def put_if_absent(self, path: str, data: bytes) -> None:
        try:
            failpoints.hit(FP_ENTRY_TEMP_WRITTEN)
        except OSError as error:
            raise BlobFailed(
                f'could not write "{self._url}/{path}"', detail=_first_line(error), hint=_HINT
            ) from error
        try:
            obstore.put(self._store, path, data, mode="create", use_multipart=False)
            failpoints.hit(FP_ENTRY_DIR_SYNCED)
        except exceptions.AlreadyExistsError as error:
            raise BlobExists(f'"{path}" exists already') from error
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            raise BlobFailed(
                f'could not write "{self._url}/{path}"', detail=_first_line(error), hint=_HINT
            ) from error
        except (exceptions.BaseError, OSError) as error:
            raise BlobUnknown(
                f'no answer for "{self._url}/{path}"', detail=_first_line(error), hint=_HINT
            ) from error

    def get(self, path: str) -> bytes:
        try:
            return bytes(obstore.get(self._store, path).bytes())
        except (exceptions.BaseError, OSError) as error:
            raise self._read_error(path, error) from error

    def get_many(self, paths: Sequence[str]) -> list[bytes]:
        if len(paths) < 2:
            return [self.get(path) for path in paths]
        with ThreadPoolExecutor(min(_OVERLAP, len(paths)), thread_name_prefix="tidemill-get") as pool:
            return list(pool.map(self.get, paths))

    def open(self, path: str, expected: int) -> pa.NativeFile:
        if expected <= _WHOLE_BYTES:
            return pa.BufferReader(self.get(path))
        fetch = partial(self._get_range, path)
        return pa.PythonFile(_RangeFile(fetch, self.size(path)), mode="r")

    def _get_range(self, path: str, start: int, length: int) -> bytes:
        try:
            return bytes(obstore.get_range(self._store, path, start=start, length=length))
        except (exceptions.BaseError, OSError) as error:
            raise self._read_error(path, error) from error

    def size(self, path: str) -> int:
        try:
            return obstore.head(self._store, path)["size"]
        except (exceptions.BaseError, OSError) as error:
            raise self._read_error(path, error) from error

    def list(self, prefix: str) -> list[BlobInfo]:
        found: list[BlobInfo] = []
        try:
            for batch in obstore.list(self._store, prefix + "/"):
                found.extend(
                    BlobInfo(meta["path"], meta["size"], meta["last_modified"].timestamp()) for meta in batch
                )
        except (exceptions.BaseError, OSError) as error:
            raise self._read_error(prefix, error) from error
        found.sort(key=lambda info: info.path)
        return found

    def folders(self, prefix: str) -> list[str]:
        try:
            found = obstore.list_with_delimiter(self._store, prefix + "/")["common_prefixes"]
        except (exceptions.BaseError, OSError) as error:
            raise self._read_error(prefix, error) from error
        return sorted(path.rstrip("/").rpartition("/")[2] for path in found)

    def delete(self, paths: Sequence[str]) -> None:
        try:
            for start in range(0, len(paths), _DELETE_BATCH):
                obstore.delete(self._store, list(paths[start : start + _DELETE_BATCH]))
        except FileNotFoundError:
            # One of them was gone; the others may not be. One by one, then.
            for path in paths:
                self._delete_one(path)
        except (exceptions.BaseError, OSError) as error:
            raise BlobFailed(
                f'could not delete in "{self._url}"', detail=_first_line(error), hint=_HINT
            ) from error

    def _delete_one(self, path: str) -> None:
        try:
            obstore.delete(self._store, path)
        except FileNotFoundError:
            pass
        except (exceptions.BaseError, OSError) as error:
            raise BlobFailed(f'could not delete "{path}"', detail=_first_line(error), hint=_HINT) from error

    def delete_prefix(self, prefix: str) -> None:
        self.delete([info.path for info in self.list(prefix)])

    def tidy(self, prefix: str, older_than: float) -> int:
        return 0  # a PUT is complete or has no effect, and there are no folders

    def sync(self, paths: Sequence[str]) -> None:
        """Nothing to do: a PUT is durable when it returns."""

    def table_uri(self, path: str) -> tuple[str, dict[str, str]]:
        options = {_DELTA_OPTIONS.get(key, key): value for key, value in self._options.items()}
        return f"{self._url}/{path}", options

    def _read_error(self, path: str, error: Exception) -> BlobError:
        if isinstance(error, FileNotFoundError):
            return BlobMissing(f'"{self._url}/{path}" does not exist')
        return BlobFailed(f'could not read "{self._url}/{path}"', detail=_first_line(error), hint=_HINT)


class _RangeFile(io.RawIOBase):
    """An object as a file that is read in ranges, as Parquet asks for them: one request each."""

    def __init__(self, fetch: Callable[[int, int], bytes], size: int) -> None:
        super().__init__()
        self._fetch = fetch
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._size - self._at)
        length = left if size is None or size < 0 else min(size, left)
        if length == 0:
            return b""
        data = self._fetch(self._at, length)
        self._at += len(data)
        return data


_HINT = "Check that the object store is reachable and that the credentials may write."


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
