"""The manifest of a bucket's state at one upper: a small file named by the upper.

It names the runs, and contains the newest rows itself while they are few (the head). A tick therefore writes
one file, and new runs are written only every few ticks. It also lists the files that the previous state had
and this one does not have, so the next commit can remove obsolete files without listing the folder.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa

from tidemill import failpoints
from tidemill.ingest.state.run import StateRun
from tidemill.runs.run import RunFacts, pack, unpack
from tidemill.runs.small_file import get_small, put_small

FP_MANIFEST_NAMED = failpoints.register(
    "ingest.state.manifest_named", "the state stands at its upper, what it replaces is there too"
)

MANIFEST_SUFFIX = ".state"
_NAME = re.compile(r"([0-9]+)\.state")


@dataclass(frozen=True, slots=True)
class Manifest:
    """`head` is newer than all `runs`, which are newest first. `previous` is the upper of the state from
    which this one was made (None: from the collection). `dropped` are the names of its runs that this state
    does not use."""

    upper: int
    head: StateRun | None
    runs: tuple[RunFacts, ...]
    previous: int | None = None
    dropped: tuple[str, ...] = ()


def manifest_name(upper: int) -> str:
    return f"{upper}{MANIFEST_SUFFIX}"


def upper_of(name: str) -> int | None:
    """The upper in a manifest's name; None for other names."""
    match = _NAME.fullmatch(name)
    return None if match is None else int(match.group(1))


def write_manifest(folder: str, manifest: Manifest, schema: pa.Schema) -> None:
    """Raises OSError."""
    runs = [[r.name, r.rows, r.bytes, r.crc] for r in manifest.runs]
    told = [manifest.upper, runs, manifest.previous, manifest.dropped]
    head = None if manifest.head is None else pack(manifest.head, schema)
    put_small(folder, manifest_name(manifest.upper), told, head)
    failpoints.hit(FP_MANIFEST_NAMED)


def read_manifest(folder: str, upper: int, schema: pa.Schema | None = None) -> Manifest | None:
    """None if it is missing or incomplete. Without `schema` the head is not read."""
    found = get_small(folder, manifest_name(upper))
    if found is None:
        return None
    (stands, runs, previous, dropped), rest = found
    head = unpack(rest, schema, StateRun) if rest.size and schema is not None else None
    if stands != upper or (head is None and rest.size and schema is not None):
        return None
    return Manifest(upper, head, tuple(RunFacts(*run) for run in runs), previous, tuple(dropped))
