"""Folder target: writes files of messages that appear complete and never change.

JSON: one message per line. Avro: a file whose records are the messages. A file is written under a name that
begins with a dot, which readers ignore, made durable, and renamed. Names sort in the order in which a writer
published them. They contain the writer and, if the last message is a statement, its upper:

    000000000007-<writer>-0of1.avro               updates; more of the round follows
    000000000008-<writer>-0of1-1700000000000.avro the rest of the round, and the statement that counts it

The last statement is thus found without opening a file. Concurrent writers have different names. If two
processes act as the same writer, the later one writes (`files_lives`).
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import IO

from tidemill import failpoints
from tidemill.cdcv2.avro import AvroCodec
from tidemill.cdcv2.wording import sentence
from tidemill.errors import WrongObjectType
from tidemill.files_root import below_root
from tidemill.sinks.definition import AVRO, WHOLE
from tidemill.sinks.files_form import avro_block, avro_header
from tidemill.sinks.files_lives import Lives
from tidemill.sinks.target import Opening, SinkError, SinkPace, Written

FP_WRITTEN = failpoints.register(
    "sink.file_written", "a sink's file is durable under a name that nobody reads"
)

# A file that grows beyond this is published before its round ends.
FILE_BYTES = 128 << 20
_SUFFIXES = {"avro": ".avro", "json": ".jsonl"}
_NAME = re.compile(r"(\d{12})-([0-9a-z]+)-(\d+)of(\d+)(?:-(\d+))?\.(?:avro|jsonl)")


def open_files_target(opening: Opening) -> FilesTarget:
    definition, codec, root = opening.definition, opening.codec, opening.files_root
    schema = codec.avro_schema if isinstance(codec, AvroCodec) else None
    path = definition.path or ""
    return FilesTarget(
        lambda: below_root(root, path),
        definition.format,
        schema,
        definition.share,
        opening.writer,
        opening.life,
        opening.written,
    )


class FilesTarget:
    """`target.TargetWriter`."""

    # Each statement is a file.
    pace = SinkPace(round_seconds=1.0, idle_seconds=30.0)

    def __init__(
        self,
        locate: Callable[[], Path],
        form: str,
        schema: str | None,
        share: tuple[int, int],
        writer: str,
        life: int,
        written: Written,
    ) -> None:
        """`locate` returns the folder, which must be in a permitted place. `schema` is that of Avro messages.
        `writer` distinguishes this sink's files from those of others. `life` is greater than in any earlier
        process that wrote them."""
        self._locate = locate
        self._form = form
        self._schema = schema
        self._share = share
        self._writer = writer
        self._life = life
        self._written = written
        self._folder: Path | None = None
        self._lives: Lives | None = None
        self._number = 1
        # The file in the making.
        self._file: IO[bytes] | None = None

    def resume(self) -> int | None:
        try:
            folder = self._locate()
            folder.mkdir(parents=True, exist_ok=True)
            lives = Lives(folder, self._writer, self._life)
            lives.begin()
            # Only now: no other process publishes any more.
            found = _published(folder)
        except OSError as e:
            raise _failed(e) from e
        self._folder, self._lives = folder, lives
        self._number = 1 + max((int(m[1]) for m in found), default=0)
        return _last(found, self._share)

    def send(self, message: bytes) -> None:
        try:
            if self._append(message) > FILE_BYTES:
                self._publish(None)
        except OSError as e:
            raise _failed(e) from e

    def settle(self) -> None:
        """The rest of the round is published together with its statement."""

    def state(self, message: bytes, upper: int) -> None:
        try:
            self._append(message)
            self._publish(upper)
        except OSError as e:
            raise _failed(e) from e
        self._written.statements += 1

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            try:
                try:
                    file.close()  # which writes its buffer
                finally:
                    os.unlink(file.name)
            except OSError:
                pass  # the next attempt tries again
        self._written.in_flight = 0

    # -- files

    def _append(self, message: bytes) -> int:
        """Appends one message; returns the size of the file."""
        if self._file is None:
            assert self._lives is not None
            self._file = open(self._lives.path(self._number), "xb")  # noqa: SIM115 closed when it is published
            self._lives.check()
            if self._form == AVRO and self._schema is not None:
                self._file.write(avro_header(self._schema))
        self._file.write(avro_block(message) if self._form == AVRO else message + b"\n")
        self._written.messages += 1
        self._written.in_flight = self._file.tell()
        return self._written.in_flight

    def _publish(self, upper: int | None) -> None:
        file, folder, lives = self._file, self._folder, self._lives
        assert file is not None and folder is not None and lives is not None
        file.flush()
        os.fsync(file.fileno())
        size = file.tell()
        failpoints.hit(FP_WRITTEN)
        number, writers = self._share
        said = "" if upper is None else f"-{upper}"
        name = f"{self._number:012d}-{self._writer}-{number}of{writers}{said}{_SUFFIXES[self._form]}"
        try:
            os.rename(file.name, folder / name)
        except FileNotFoundError:
            lives.check()
            raise
        _sync(folder)
        self._file = None
        file.close()
        self._number += 1
        self._written.bytes += size
        self._written.in_flight = 0


def last_upper(folder: Path, share: tuple[int, int]) -> int | None:
    """The upper of the last statement in the folder that covers the updates of the share. Raises
    SinkError."""
    try:
        return _last(_published(folder), share)
    except FileNotFoundError:
        return None
    except OSError as e:
        raise _failed(e) from e


def _published(folder: Path) -> list[re.Match[str]]:
    return [m for m in map(_NAME.fullmatch, os.listdir(folder)) if m is not None]


def _last(found: list[re.Match[str]], share: tuple[int, int]) -> int | None:
    spoken = [int(m[5]) for m in found if m[5] and (int(m[3]), int(m[4])) in (share, WHOLE)]
    return max(spoken, default=None)


def is_free(folder: Path) -> bool:
    """Whether the folder has no file that a reader would read. Raises SinkError."""
    try:
        return all(name.startswith((".", "_")) for name in os.listdir(folder))
    except FileNotFoundError:
        return True
    except OSError as e:
        raise _failed(e) from e


def check_writable(folder: Path) -> None:
    """Creates the folder, and a test file in it. Raises SinkError, and WrongObjectType if the path is a
    file."""
    in_the_way = next((p for p in (folder, *folder.parents) if p.exists() and not p.is_dir()), None)
    if in_the_way is not None:
        raise WrongObjectType(
            f'"{in_the_way.name}" is a file, and not a folder', hint="A sink writes files into a folder."
        )
    probe = folder / f".probe-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(probe, "wb"):
            pass
        os.unlink(probe)
    except OSError as e:
        raise _failed(e) from e


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _failed(error: OSError) -> SinkError:
    hint = "See whether the folder is there and whether the server may write to it."
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        hint = "Make room on the disk: the sink goes on by itself."
    return SinkError("the folder cannot be written to", detail=sentence(error), hint=hint)
