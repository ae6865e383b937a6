"""A manifest: the runs that make up a bucket's state at one upper, in a small file named by the upper.

It tells also what the state before it had and this one has not, so that whoever commits the next one can
remove what nobody needs any more without looking around.
"""

from __future__ import annotations

import json
import os
import re
import uuid
import zlib
from dataclasses import dataclass
from typing import Any

from tidemill import failpoints
from tidemill.ingest.state.run import TEMPORARY_SUFFIX, RunFacts, remove

FP_MANIFEST_WRITTEN = failpoints.register("ingest.state.manifest_written", "a manifest's temporary file")
FP_MANIFEST_NAMED = failpoints.register(
    "ingest.state.manifest_named", "the state stands at its upper, what it replaces is there too"
)

MANIFEST_SUFFIX = ".state"
_NAME = re.compile(r"([0-9]+)\.state")


@dataclass(frozen=True, slots=True)
class Manifest:
    """`runs`: newest first. `previous` is the upper of the state that this one was made from (None: from the
    collection), and `dropped` the names of its runs that are not here."""

    upper: int
    runs: tuple[RunFacts, ...]
    previous: int | None = None
    dropped: tuple[str, ...] = ()


def manifest_name(upper: int) -> str:
    return f"{upper}{MANIFEST_SUFFIX}"


def upper_of(name: str) -> int | None:
    """The upper in a manifest's name; None for other names."""
    match = _NAME.fullmatch(name)
    return None if match is None else int(match.group(1))


def write_manifest(folder: str, manifest: Manifest) -> None:
    """Raises OSError."""
    runs = [[r.name, r.rows, r.bytes, r.crc] for r in manifest.runs]
    put_small(
        folder, manifest_name(manifest.upper), [manifest.upper, runs, manifest.previous, manifest.dropped]
    )
    failpoints.hit(FP_MANIFEST_NAMED)


def read_manifest(folder: str, upper: int) -> Manifest | None:
    """None when it is missing or not whole."""
    body = get_small(folder, manifest_name(upper))
    if body is None:
        return None
    stands, runs, previous, dropped = body
    if stands != upper:
        return None
    return Manifest(upper, tuple(RunFacts(*run) for run in runs), previous, tuple(dropped))


def put_small(folder: str, name: str, told: Any) -> None:
    """A small file of JSON with its checksum, there whole or not at all."""
    body = json.dumps(told).encode()
    temporary = os.path.join(folder, f"{uuid.uuid4().hex}{TEMPORARY_SUFFIX}")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(fd, b"%08x\n%s" % (zlib.crc32(body), body))
        finally:
            os.close(fd)
        failpoints.hit(FP_MANIFEST_WRITTEN)
        os.rename(temporary, os.path.join(folder, name))
    except OSError:
        remove(temporary)
        raise


def get_small(folder: str, name: str) -> Any:
    """What `put_small` wrote; None when it is missing or not whole."""
    try:
        with open(os.path.join(folder, name), "rb", buffering=0) as file:
            data = file.read()
    except OSError:
        return None
    crc, _, body = data.partition(b"\n")
    if crc != b"%08x" % zlib.crc32(body):
        return None
    return json.loads(body)
