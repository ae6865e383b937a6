"""Log entries of a shard, as bytes and as values. No I/O.

An entry is a Delta commit: one JSON action per line. In addition to the Delta actions, each entry ends with a
`commitInfo` that holds the version, the number of actions and a checksum of the preceding lines. Truncated,
corrupted or misnamed entries are thus detected. It also holds the writer and a nonce, so a writer whose put
got no answer can recognize its own entry. upper, since and epoch are Delta `txn` actions, which checkpoints
preserve.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, cast

from tidemill.errors import DataCorrupted
from tidemill.persist.part import Part
from tidemill.types.arrow import DIFF_COLUMN, ERROR_COLUMN, TIME_COLUMN
from tidemill.types.delta import delta_schema_string, relation_of, uses_timestamp_ntz
from tidemill.types.model import RelationDesc

# The empty frontier in the log: no more updates can appear. Delta's txn versions are plain integers.
CLOSED = -1

UPPER_APP, SINCE_APP, EPOCH_APP = "tidemill.upper", "tidemill.since", "tidemill.epoch"
_RETRACTIONS, _CRC, _MEMORY = "tidemill.retractions", "tidemill.crc", "tidemill.memory"


class Operation(Enum):
    """What an entry is for; Delta's history shows it."""

    CREATE = "CREATE"
    APPEND = "APPEND"
    FENCE = "FENCE"
    COMPACT = "COMPACT"
    DOWNGRADE = "DOWNGRADE SINCE"
    EVOLVE = "EVOLVE"


@dataclass(frozen=True, slots=True)
class Metadata:
    """A shard's description. `configuration` holds Delta's own settings and the caller's properties."""

    table_id: str
    desc: RelationDesc
    created: int  # milliseconds since the Unix epoch
    configuration: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Entry:
    """`upper` and `since` are None where the entry leaves them alone; upper may be CLOSED. Every entry
    carries its epoch."""

    operation: Operation
    writer: str
    nonce: str
    # The writer's wall clock, milliseconds, for people and for retention; and, within an epoch, the order of
    # cause and effect over all logs (`committer`).
    timestamp: int
    adds: tuple[Part, ...] = ()
    removes: tuple[str, ...] = ()  # paths
    upper: int | None = None
    since: int | None = None
    epoch: int | None = None
    metadata: Metadata | None = None


@dataclass(frozen=True, slots=True)
class Removed:
    """A part that is no longer live; `at` is when, in milliseconds."""

    path: str
    at: int


@dataclass(slots=True)
class Actions:
    """Contents of a log file (entry or checkpoint), before they are validated."""

    adds: list[Part] = field(default_factory=list[Part])
    removes: list[Removed] = field(default_factory=list[Removed])
    upper: int | None = None
    since: int | None = None
    epoch: int | None = None
    metadata: Metadata | None = None
    info: dict[str, Any] | None = None


def encode(entry: Entry, version: int) -> bytes:
    """The entry's file."""
    lines: list[str] = []
    # Compaction and other operations except appends do not change the contents. Delta's change readers skip
    # them.
    change = entry.operation is Operation.APPEND
    if entry.metadata is not None:
        lines.append(_dump({"protocol": _protocol(entry.metadata.desc)}))
        lines.append(_dump({"metaData": _encode_metadata(entry.metadata)}))
    for app, value in ((UPPER_APP, entry.upper), (SINCE_APP, entry.since), (EPOCH_APP, entry.epoch)):
        if value is not None:
            lines.append(_dump({"txn": {"appId": app, "version": value}}))
    lines.extend(_dump({"add": _encode_add(part, entry.timestamp, change)}) for part in entry.adds)
    lines.extend(_dump({"remove": _encode_remove(path, entry.timestamp, change)}) for path in entry.removes)
    body = "".join(f"{line}\n" for line in lines).encode()
    info = {
        "timestamp": entry.timestamp,
        "operation": entry.operation.value,
        "operationParameters": {},
        "engineInfo": "tidemill",
        "tidemillVersion": version,
        "tidemillWriter": entry.writer,
        "tidemillNonce": entry.nonce,
        "tidemillActions": len(lines),
        "tidemillCrc": zlib.crc32(body),
    }
    return body + _dump({"commitInfo": info}).encode() + b"\n"


def decode(data: bytes, version: int, name: str) -> Entry:
    """The entry back; raises DataCorrupted, naming the file, for anything that `encode` of this version
    did not write."""
    body, _, last = data.removesuffix(b"\n").rpartition(b"\n")
    lines = [line for line in body.split(b"\n") if line]
    actions = Actions()
    try:
        for line in lines:
            read_action(json.loads(line), actions)
        read_action(json.loads(last), actions)
        info = actions.info
        if not data.endswith(b"\n") or info is None:
            raise ValueError("it does not end with its commitInfo")
        if "tidemillNonce" not in info:
            raise ValueError("another program wrote it")
        if info["tidemillVersion"] != version:
            raise ValueError(f"it says that it is version {info['tidemillVersion']}")
        if info["tidemillActions"] != len(lines) or info["tidemillCrc"] != zlib.crc32(
            body + b"\n" if body else b""
        ):
            raise ValueError("its checksum does not fit")
        return Entry(
            operation=Operation(info["operation"]),
            writer=str(info["tidemillWriter"]),
            nonce=str(info["tidemillNonce"]),
            timestamp=int(info["timestamp"]),
            adds=tuple(actions.adds),
            removes=tuple(removed.path for removed in actions.removes),
            upper=actions.upper,
            since=actions.since,
            epoch=actions.epoch,
            metadata=actions.metadata,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataCorrupted(
            f'log entry "{name}" is corrupt',
            detail=f"{error}",
            hint="The data directory is damaged: restore the file.",
        ) from error


def read_action(action: Mapping[str, Any], into: Actions) -> None:
    """Apply one action, from a line of an entry or a row of a checkpoint (absent kinds may be null). Raises
    ValueError, KeyError or TypeError for actions that the log of a shard cannot contain."""
    kinds = [kind for kind, value in action.items() if value is not None]
    if len(kinds) != 1:
        raise ValueError(f"an action of kinds {kinds}")
    kind = kinds[0]
    value = cast("dict[str, Any]", action[kind])
    if kind == "add":
        into.adds.append(_decode_add(value))
    elif kind == "remove":
        into.removes.append(Removed(str(value["path"]), int(value["deletionTimestamp"])))
    elif kind == "txn":
        _decode_txn(value, into)
    elif kind == "metaData":
        into.metadata = _decode_metadata(value)
    elif kind == "protocol":
        if int(value["minReaderVersion"]) > 3 or int(value["minWriterVersion"]) > 7:
            raise ValueError("a protocol that this program does not know")
    elif kind == "commitInfo":
        into.info = value
    else:
        raise ValueError(f"an action of kind {kind}")


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _protocol(desc: RelationDesc) -> dict[str, Any]:
    if uses_timestamp_ntz(desc):
        return {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": ["timestampNtz"],
            "writerFeatures": ["timestampNtz"],
        }
    return {"minReaderVersion": 1, "minWriterVersion": 2}


def _encode_metadata(metadata: Metadata) -> dict[str, Any]:
    return {
        "id": metadata.table_id,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": delta_schema_string(metadata.desc),
        "partitionColumns": [],
        "configuration": dict(metadata.configuration),
        "createdTime": metadata.created,
    }


def _decode_metadata(value: Mapping[str, Any]) -> Metadata:
    # Checkpoints store maps as lists of pairs.
    configuration = cast("Mapping[str, str]", dict(value["configuration"]))
    return Metadata(
        table_id=str(value["id"]),
        desc=relation_of(str(value["schemaString"])),
        created=int(value["createdTime"]),
        configuration=configuration,
    )


def _encode_add(part: Part, timestamp: int, change: bool) -> dict[str, Any]:
    stats = {
        "numRecords": part.rows,
        "minValues": {TIME_COLUMN: part.min_time, DIFF_COLUMN: part.min_diff},
        "maxValues": {TIME_COLUMN: part.max_time, DIFF_COLUMN: part.max_diff},
        "nullCount": {TIME_COLUMN: 0, DIFF_COLUMN: 0, ERROR_COLUMN: part.rows - part.errors},
    }
    return {
        "path": part.path,
        "partitionValues": {},
        "size": part.bytes,
        "modificationTime": timestamp,
        "dataChange": change,
        "stats": _dump(stats),
        "tags": {_RETRACTIONS: str(part.retractions), _CRC: str(part.crc), _MEMORY: str(part.memory)},
    }


def _decode_add(value: Mapping[str, Any]) -> Part:
    stats = cast("dict[str, Any]", json.loads(value["stats"]))
    least, most = stats["minValues"], stats["maxValues"]
    tags = dict(value["tags"])  # a checkpoint's maps come as lists of pairs
    rows = int(stats["numRecords"])
    return Part(
        path=str(value["path"]),
        rows=rows,
        bytes=int(value["size"]),
        min_time=int(least[TIME_COLUMN]),
        max_time=int(most[TIME_COLUMN]),
        min_diff=int(least[DIFF_COLUMN]),
        max_diff=int(most[DIFF_COLUMN]),
        retractions=int(tags[_RETRACTIONS]),
        errors=rows - int(stats["nullCount"][ERROR_COLUMN]),
        crc=int(tags[_CRC]),
        memory=int(tags.get(_MEMORY, 0)),
    )


def _encode_remove(path: str, timestamp: int, change: bool) -> dict[str, Any]:
    return {"path": path, "deletionTimestamp": timestamp, "dataChange": change, "extendedFileMetadata": False}


def _decode_txn(value: Mapping[str, Any], into: Actions) -> None:
    app, version = str(value["appId"]), int(value["version"])
    if app == UPPER_APP:
        into.upper = version
    elif app == SINCE_APP:
        into.since = version
    elif app == EPOCH_APP:
        into.epoch = version
    else:
        raise ValueError(f"a txn of application {app}")
