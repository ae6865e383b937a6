"""Blob store in a local folder, safe against a power cut and against `kill -9` at any instruction.

`put_if_absent` writes a temporary file beside the target, fsyncs it, and hard-links it to the target name.
link(2) is atomic, fails if the name exists, and exposes only complete files. Then the directory is fsynced. A
crash leaves at most a temporary file.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import threading
import uuid
from collections.abc import Sequence

import pyarrow as pa

from tidemill import failpoints
from tidemill.persist.blob import BlobExists, BlobFailed, BlobInfo, BlobMissing, BlobUnknown

FP_PART_BEFORE_FSYNC = failpoints.register(
    "persist.part.before_fsync", "a part's bytes were written, not synced"
)
FP_ENTRY_TEMP_WRITTEN = failpoints.register(
    "persist.entry.temp_written", "a log entry's temporary file was synced"
)
FP_ENTRY_LINKED = failpoints.register(
    "persist.entry.linked", "a log entry got its name, its directory is not synced"
)
FP_ENTRY_DIR_SYNCED = failpoints.register(
    "persist.entry.dir_synced", "a log entry is durable, not acknowledged"
)

# Hidden from Delta readers, and never the name of anything that `put` or `put_if_absent` makes visible.
_TEMPORARY = ".tmp-"

# Errors of link(2) that say that the directory was not changed; any other (EIO) leaves it open.
_LINK_REFUSED = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EROFS,
        errno.EACCES,
        errno.EPERM,
        errno.ENOENT,
        errno.EMLINK,
        errno.ENOTDIR,
    }
)

_HINTS = {
    errno.ENOSPC: "Free disk space; nothing was written.",
    errno.EDQUOT: "Raise the disk quota; nothing was written.",
    errno.EROFS: "The file system is read-only: check the mount and the disk's health.",
    errno.EACCES: "Check the owner and the mode of the data directory.",
    errno.EPERM: "Check the data directory's owner and mode; its file system must support hard links.",
    errno.EIO: "The disk reports errors: check its health.",
}


class LocalBlobs:
    """See the module; `root` is created when it does not exist."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)
        # Directories known to exist durably, so only the first write into one creates it. If a directory is
        # deleted meanwhile, the next write fails once and the directory is created again.
        self._known: set[str] = set()
        self._known_lock = threading.Lock()

    def __reduce__(self) -> tuple[type[LocalBlobs], tuple[str]]:
        return (LocalBlobs, (self.root,))

    @property
    def url(self) -> str:
        return self.root

    @property
    def overlap(self) -> int:
        return 1

    def put(self, path: str, data: bytes | memoryview | pa.Buffer) -> None:
        target = self._path(path)
        try:
            self._write_part(target, data)
            _sync_directory(os.path.dirname(target))
        except OSError as error:
            self._forget(target)
            _unlink(target)
            raise _failed("could not write", target, error) from error

    def put_if_absent(self, path: str, data: bytes) -> None:
        target = self._path(path)
        temporary = os.path.join(os.path.dirname(target), f"{_TEMPORARY}{uuid.uuid4().hex}")
        try:
            try:
                self._make_parent(target)
                _write_synced(temporary, data, None)
                failpoints.hit(FP_ENTRY_TEMP_WRITTEN)
            except OSError as error:
                self._forget(target)
                raise _failed("could not write", target, error) from error
            try:
                os.link(temporary, target)
            except FileExistsError as error:
                # The one who made it may not have synced the directory yet, and our caller is going to build
                # on it.
                self._sync_or_unknown(target)
                raise BlobExists(f'"{path}" exists already') from error
            except OSError as error:
                self._forget(target)
                if error.errno in _LINK_REFUSED:
                    raise _failed("could not link", target, error) from error
                raise BlobUnknown(
                    f'could not link "{target}"', detail=str(error), hint=_hint(error)
                ) from error
            self._sync_or_unknown(target)
        finally:
            _unlink(temporary)

    def _sync_or_unknown(self, target: str) -> None:
        """The name exists; until its directory is synced, a power cut may remove it."""
        try:
            failpoints.hit(FP_ENTRY_LINKED)
            _sync_directory(os.path.dirname(target))
        except OSError as error:
            raise BlobUnknown(
                f'could not make "{target}" durable', detail=str(error), hint=_hint(error)
            ) from error
        failpoints.hit(FP_ENTRY_DIR_SYNCED)

    def get(self, path: str) -> bytes:
        try:
            with open(self._path(path), "rb") as file:
                return file.read()
        except OSError as error:
            raise _read_error(self._path(path), error) from error

    def get_many(self, paths: Sequence[str]) -> list[bytes]:
        return [self.get(path) for path in paths]

    def open(self, path: str, expected: int) -> pa.NativeFile:
        # Not memory-mapped: a file that is truncated under a mapping kills the process with SIGBUS.
        try:
            return pa.OSFile(self._path(path), "rb")
        except OSError as error:
            raise _read_error(self._path(path), error) from error

    def size(self, path: str) -> int:
        try:
            return os.stat(self._path(path)).st_size
        except OSError as error:
            raise _read_error(self._path(path), error) from error

    def list(self, prefix: str) -> list[BlobInfo]:
        found: list[BlobInfo] = []
        for entry in self._walk(prefix):
            if entry.name.startswith(_TEMPORARY):
                continue
            try:
                info = entry.stat()
            except FileNotFoundError:
                continue  # deleted while we looked
            found.append(BlobInfo(os.path.relpath(entry.path, self.root), info.st_size, info.st_mtime))
        found.sort(key=lambda info: info.path)
        return found

    def folders(self, prefix: str) -> list[str]:
        try:
            with os.scandir(self._path(prefix)) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _read_error(self._path(prefix), error) from error

    def delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            try:
                os.unlink(self._path(path))
            except FileNotFoundError:
                pass
            except OSError as error:
                raise _failed("could not delete", self._path(path), error) from error

    def delete_prefix(self, prefix: str) -> None:
        folder = self._path(prefix)
        self._forget(os.path.join(folder, ""))
        try:
            shutil.rmtree(folder)
            _sync_directory(os.path.dirname(folder))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise _failed("could not delete", folder, error) from error

    def tidy(self, prefix: str, older_than: float) -> int:
        count = 0
        for folder, folders, files in os.walk(self._path(prefix), topdown=False):
            for name in files:
                path = os.path.join(folder, name)
                if name.startswith(_TEMPORARY) and _older(path, older_than):
                    _unlink(path)
                    count += 1
            if not files and not folders and _older(folder, older_than):
                try:
                    os.rmdir(folder)
                    count += 1
                except OSError:
                    continue  # another process has just begun to use it
                self._forget(os.path.join(folder, ""))
        return count

    def sync(self, paths: Sequence[str]) -> None:
        targets = [self._path(path) for path in paths]
        try:
            for target in targets:
                descriptor = os.open(target, os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
            for folder in {os.path.dirname(target) for target in targets}:
                _sync_directory(folder)
        except OSError as error:
            raise _failed("could not sync", targets[0], error) from error

    def table_uri(self, path: str) -> tuple[str, dict[str, str]]:
        return self._path(path), {}

    def _path(self, path: str) -> str:
        return os.path.join(self.root, path)

    def _walk(self, prefix: str) -> list[os.DirEntry[str]]:
        found: list[os.DirEntry[str]] = []
        folders = [self._path(prefix)]
        while folders:
            try:
                with os.scandir(folders.pop()) as entries:
                    for entry in entries:
                        if entry.is_dir(follow_symlinks=False):
                            folders.append(entry.path)
                        else:
                            found.append(entry)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise _read_error(self._path(prefix), error) from error
        return found

    def _write_part(self, target: str, data: bytes | memoryview | pa.Buffer) -> None:
        self._make_parent(target)
        try:
            _write_synced(target, data, FP_PART_BEFORE_FSYNC)
        except FileNotFoundError:
            # The folder was empty and another process has tidied it away.
            self._forget(target)
            self._make_parent(target)
            _write_synced(target, data, FP_PART_BEFORE_FSYNC)

    def _make_parent(self, target: str) -> None:
        """Make the directory of `target` and make it durable: a new directory's name lives in its own
        parent."""
        folder = os.path.dirname(target)
        if folder in self._known:
            return
        missing: list[str] = []
        walk = folder
        while not os.path.isdir(walk):
            missing.append(walk)
            walk = os.path.dirname(walk)
        for made in reversed(missing):
            os.makedirs(made, exist_ok=True)
            _sync_directory(os.path.dirname(made))
        with self._known_lock:
            self._known.add(folder)

    def _forget(self, target: str) -> None:
        folder = os.path.dirname(target)
        with self._known_lock:
            self._known = {known for known in self._known if not (known + "/").startswith(folder + "/")}


def _write_synced(path: str, data: bytes | memoryview | pa.Buffer, failpoint: str | None) -> None:
    descriptor = os.open(
        path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, stat.S_IRUSR | stat.S_IWUSR | stat.S_IRGRP
    )
    try:
        view = memoryview(data).cast("B")
        while view:
            view = view[os.write(descriptor, view) :]
        if failpoint is not None:
            failpoints.hit(failpoint)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_directory(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _older(path: str, than: float) -> bool:
    try:
        return os.stat(path).st_mtime < than
    except OSError:
        return False


def _unlink(path: str) -> None:
    """Best effort: what stays is swept later."""
    try:
        os.unlink(path)
    except OSError:
        pass


def _hint(error: OSError) -> str | None:
    return _HINTS.get(error.errno or 0)


def _failed(what: str, path: str, error: OSError) -> BlobFailed:
    sqlstate = "53100" if error.errno in (errno.ENOSPC, errno.EDQUOT) else None
    return BlobFailed(
        f'{what} "{path}"', detail=os.strerror(error.errno or 0), hint=_hint(error), sqlstate=sqlstate
    )


def _read_error(path: str, error: OSError) -> BlobMissing | BlobFailed:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return BlobMissing(f'"{path}" does not exist')
    return _failed("could not read", path, error)
