"""Secret store: passwords and keys, in a folder that only the user of the server can read.

This is the only durable data outside shards. Everyone with access to the data directory or `mz_connections`
can read the catalog, and it keeps history; neither is acceptable for a secret. A text is one file, `<item
id>-<version>`, mode 0600, in a folder of mode 0700.

The file is written and synced before the catalog entry that names it. No other attempt or server uses the
same name, because versions are times of the one clock. It is deleted after the entry that no longer names it.
Files left by a crash in between are deleted when the store is next opened. CREATE and ALTER SECRET are
therefore atomic, like any other change.

Created by the engine; read by the code that opens sources. No log message or error contains the text of a
secret.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tidemill import failpoints
from tidemill.catalog.items import Secret
from tidemill.catalog.state import CatalogState
from tidemill.errors import LimitExceeded, TidemillError, Unavailable, Unsupported

log = logging.getLogger(__name__)
T = TypeVar("T")

FP_WRITTEN = failpoints.register(
    "secrets.written", "a secret's text is durable, the catalog does not know it"
)

# Certificates with their chains have some kilobytes. Secrets are not for data.
MAX_SECRET_BYTES = 512 * 1024

_OURS = re.compile(r"u\d+-\d+|\.tmp-[0-9a-f]{32}")


class SecretMissing(TidemillError):
    """The catalog has the secret, the store not."""

    sqlstate = "58P01"


class SecretStore:
    """Thread-safe. `folder` is created when it is first needed. None: secrets cannot be stored."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def write(self, secret: Secret, text: str) -> None:
        """Durable when it returns."""
        data = checked(text)
        keep_file(self._place(), file_name(secret), data)
        failpoints.hit(FP_WRITTEN)

    def read(self, secret: Secret) -> str:
        path = None if self._folder is None else self._folder / file_name(secret)
        try:
            if path is None:
                raise FileNotFoundError
            return _trying("cannot read a secret", path.read_bytes).decode()
        except FileNotFoundError:
            raise SecretMissing(
                f'the text of secret "{secret.name}" is missing',
                detail="The server has no folder for secrets."
                if path is None
                else f"There is no file {path}.",
                hint="Bring the folder back that the server had for its secrets (--secrets-dir), or set the "
                "secret anew with ALTER SECRET ... AS '...'.",
            ) from None

    def forget(self, secret: Secret) -> None:
        """The catalog does not name this text any more. Best effort: the next server tries again."""
        if self._folder is None:
            return
        try:
            (self._folder / file_name(secret)).unlink(missing_ok=True)
        except OSError as e:
            log.warning("the file of a secret that was dropped cannot be deleted: %s", e)

    def follow(self, old: CatalogState, new: CatalogState) -> None:
        """For `Catalog.on_change`: texts that are named no more go."""
        for secret in old.secrets():
            now = new.items.get(secret.id)
            if not isinstance(now, Secret) or now.version != secret.version:
                self.forget(secret)

    def sweep(self, state: CatalogState) -> None:
        """Delete the remains of a crash: texts that the catalog never named or no longer names. Call before
        any write."""
        if self._folder is None or not self._folder.is_dir():
            return
        named = {file_name(secret) for secret in state.secrets()}
        try:
            for path in self._folder.iterdir():
                if _OURS.fullmatch(path.name) and path.name not in named:
                    log.info("deleting the file of a secret that no longer exists: %s", path.name)
                    path.unlink(missing_ok=True)
        except OSError as e:
            log.warning("the folder of secrets cannot be tidied up: %s", e)

    def _place(self) -> Path:
        if self._folder is None:
            raise Unsupported(
                "there is no place for secrets",
                detail="Secrets are not kept in an object store.",
                hint="Start the server with --secrets-dir: a local folder that stays.",
                sqlstate="55000",
            )
        return self._folder


def checked(text: str) -> bytes:
    data = text.encode()
    if len(data) > MAX_SECRET_BYTES:
        raise LimitExceeded(f"a secret can have at most {MAX_SECRET_BYTES} bytes, this has {len(data)}")
    return data


def file_name(secret: Secret) -> str:
    return f"{secret.id}-{secret.version}"


def keep_file(folder: Path, name: str, data: bytes) -> None:
    """Durable when it returns; for a folder that no server uses. A file of that name is replaced."""
    temporary = folder / f".tmp-{uuid.uuid4().hex}"

    def put() -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # An existing folder may have wider permissions.
        folder.chmod(0o700)
        _write_synced(temporary, data)
        temporary.rename(folder / name)
        _sync(folder)
        _sync(folder.parent)

    try:
        _trying("cannot keep a secret", put)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _write_synced(path: Path, data: bytes) -> None:
    # Never readable by others, even while it is empty: the mode is set at the open, independent of the umask.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _trying(what: str, act: Callable[[], T]) -> T:
    """The caller reports a missing file."""
    try:
        return act()
    except FileNotFoundError:
        raise
    except OSError as e:
        raise Unavailable(
            what,
            detail=f"{e.filename}: {e.strerror}",
            hint="Check the folder of secrets: owner, mode, space.",
        ) from e
