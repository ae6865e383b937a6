"""Small files that appear completely or not at all: manifests, and results that another process takes."""

from __future__ import annotations

import json
import os
import zlib
from typing import Any

import pyarrow as pa

from tidemill import failpoints
from tidemill.runs.run import remove, temporary_path

FP_WRITTEN = failpoints.register("runs.small_file_written", "the temporary form of a small file was written")

# The checksum's eight digits and the end of their line.
_CHECKSUM = 9


def put_small(folder: str, name: str, told: Any, rest: pa.Buffer | None = None) -> None:
    """Write a small file: its checksum, JSON, and aligned bytes. It appears completely or not at all."""
    body = json.dumps(told).encode()
    body += b" " * (-(len(body) + _CHECKSUM + 1) % 64) + b"\n"
    if rest is not None:
        body += rest
    temporary = temporary_path(folder)
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.writev(fd, [b"%08x\n" % zlib.crc32(body), body])
        finally:
            os.close(fd)
        failpoints.hit(FP_WRITTEN)
        os.rename(temporary, os.path.join(folder, name))
    except OSError:
        remove(temporary)
        raise


def get_small(folder: str, name: str) -> tuple[Any, pa.Buffer] | None:
    """The contents written by `put_small`; None if the file is missing or incomplete."""
    try:
        with pa.OSFile(os.path.join(folder, name), "rb") as file:
            data = file.read_buffer()
    except OSError:
        return None
    view = memoryview(data)
    if view[:_CHECKSUM].tobytes() != b"%08x\n" % zlib.crc32(view[_CHECKSUM:]):
        return None
    body = view[_CHECKSUM:].tobytes().partition(b"\n")[0]
    return json.loads(body), data.slice(_CHECKSUM + len(body) + 1)
