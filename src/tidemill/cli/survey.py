"""A survey of a data directory by reading only: no lock, no epoch, no write.

Called by `tidemill inspect`. It works while a server uses the directory. It reads the log of each shard
before it lists the files. A file that the log names as live therefore exists or is really missing, because a
removed file stays long after it was replaced. A shard that cannot be read is reported, and the survey
continues with the others.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path

from tidemill.catalog import codec
from tidemill.catalog.items import Database, Item, MaterializedView, Schema, Source, SourceTable, Table
from tidemill.catalog.store import CATALOG_SHARD, DROPPED
from tidemill.config import Config, ConfigError
from tidemill.errors import TidemillError
from tidemill.persist.blob import Blobs, open_blobs
from tidemill.persist.entry import CLOSED
from tidemill.persist.formats import format_of
from tidemill.persist.lease import CLOCK_SHARD, ClockShard, Holder
from tidemill.persist.log import ShardMissing, check_reached, list_log, load
from tidemill.persist.shard import Shard
from tidemill.persist.state import ShardState
from tidemill.persist.txns.record import TXNS_SHARD, marks

_SYSTEM = {
    CATALOG_SHARD: "(catalog)",
    CLOCK_SHARD: "(clock and holder)",
    TXNS_SHARD: "(transactions)",
}
# The writer checkpoints every few dozen entries. A log this long without a checkpoint means that checkpoints
# fail.
LATE_CHECKPOINT = 1000
# A report lists this many by name and counts the rest.
_SHOWN = 3


@dataclass(slots=True)
class ShardReport:
    """One shard. `problems` is empty for a healthy one; `notes` are not damage. Numbers are None if the log
    could not be read. `upper` is "closed" for a collection that cannot change any more."""

    id: str
    name: str = ""
    since: int | None = None
    upper: int | str | None = None
    epoch: int | None = None
    version: int | None = None
    checkpoint: int | None = None
    files: int | None = None
    rows: int | None = None
    bytes: int | None = None
    # Files that are not live: replaced ones in their grace period, and leftovers of crashed writers.
    other_files: int | None = None
    # Its collection was dropped. The files are deleted when no statement can need them.
    dropped: bool = False
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class DirectorySurvey:
    """The whole directory. `holder` opened it last; `problems` are those that belong to no single shard."""

    url: str
    format: int | None = None
    holder: Holder | None = None
    problems: list[str] = field(default_factory=list)
    shards: list[ShardReport] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        return not self.problems and not any(shard.problems for shard in self.shards)


def survey(config: Config) -> DirectorySurvey:
    """Survey the directory. Raises ConfigError if it is not a data directory."""
    if not config.on_s3 and not Path(config.data_dir).is_dir():
        raise ConfigError(f'there is no data directory "{config.data_dir}"')
    blobs = open_blobs(config.data_dir, config.s3_options())
    found = DirectorySurvey(blobs.url)
    ids = sorted({info.path.split("/")[1] for info in blobs.list("shards")})
    if not ids:
        raise ConfigError(f'"{config.data_dir}" holds no shards', hint="Is it a data directory of Tidemill?")
    names = dict(_SYSTEM)
    dropped = frozenset[str]()
    try:
        tables, dropped = _catalog(blobs)
        names |= tables
    except TidemillError as e:
        found.problems.append(f"the catalog cannot be read, so tables have no names here: {e.primary}")
    # Read before the logs: otherwise the logs could seem to be behind a running server.
    reached = _reached(blobs)
    for shard_id in ids:
        report = _shard(blobs, shard_id, reached.get(shard_id))
        if report is not None:
            report.dropped = report.dropped or shard_id in dropped
            report.name = "(dropped)" if report.dropped else names.get(shard_id, "")
            if report.dropped:
                report.notes.append("its table was dropped; the server deletes the files a while later")
            elif not report.name:
                report.notes.append("no item of the catalog uses it")
            found.shards.append(report)
    # If this fails, the report of the clock shard has the reason.
    with contextlib.suppress(TidemillError):
        found.format, found.holder = read_holder(blobs)
    return found


def _reached(blobs: Blobs) -> dict[str, int]:
    """The version that the log of each shard had durably reached. If these cannot be read, the report of the
    shard that holds them has the reason."""
    found: dict[str, int] = {}
    with contextlib.suppress(TidemillError):
        _, holder = read_holder(blobs)
        if holder is not None and holder.txns is not None:
            found[TXNS_SHARD] = holder.txns
        txns = Shard.open(blobs, TXNS_SHARD, epoch=None)
        if txns.upper:
            with txns.snapshot(txns.upper - 1) as snapshot:
                found |= {shard_id: mark.version for shard_id, mark in marks(snapshot.read()).items()}
    return found


def _shard(blobs: Blobs, shard_id: str, reached: int | None) -> ShardReport | None:
    report = ShardReport(shard_id)
    try:
        loaded = load(blobs, shard_id)
        check_reached(shard_id, loaded.state.version, reached)
    except ShardMissing:
        # Dropped since the directory was listed, or an interrupted drop that is completed later.
        left = len(blobs.list(f"shards/{shard_id}"))
        if not left:
            return None
        report.dropped = True
        report.other_files = left
        return report
    except TidemillError as e:
        report.problems.append(" ".join(filter(None, (e.primary, e.detail))))
        return report
    state = loaded.state
    report.since = state.since
    report.upper = "closed" if state.upper == CLOSED else state.upper
    report.epoch = state.epoch
    report.version = state.version
    report.checkpoint = loaded.checkpoint
    report.files = len(state.parts)
    report.rows = state.rows
    report.bytes = state.bytes
    for version in loaded.broken:
        report.notes.append(f"checkpoint {version} is torn and not needed")
    if state.version - (loaded.checkpoint or 0) > LATE_CHECKPOINT:
        report.notes.append(
            f"{state.version - (loaded.checkpoint or 0)} log entries since the last checkpoint"
        )
    _files(blobs, shard_id, state, report)
    return report


def _files(blobs: Blobs, shard_id: str, state: ShardState, report: ShardReport) -> None:
    """Compare the live parts with the existing files."""
    prefix = f"shards/{shard_id}/"
    there = {info.path.removeprefix(prefix): info.size for info in blobs.list(f"{prefix}parts")}
    missing = [path for path in state.parts if path not in there]
    wrong = [p.path for p in state.parts.values() if p.path in there and there[p.path] != p.bytes]
    # A server may have dropped the shard after its log was read and before the listing. That is no damage.
    if (missing or wrong) and not list_log(blobs, shard_id).entries:
        report.notes.append("dropped while it was inspected")
        return
    for what, paths in (("missing", missing), ("of the wrong size", wrong)):
        if paths:
            more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
            report.problems.append(f"parts {what}: {', '.join(paths[:_SHOWN])}{more}")
    report.other_files = len(there.keys() - state.parts.keys())


def _catalog(blobs: Blobs) -> tuple[dict[str, str], frozenset[str]]:
    """The full name of the content of each shard, from the present catalog; and the shards of dropped
    objects."""
    shard = Shard.open(blobs, CATALOG_SHARD, epoch=None)
    if not shard.upper:
        return {}, frozenset()
    with shard.snapshot(shard.upper - 1) as snapshot:
        table = snapshot.read()
    items: dict[str, Item] = {}
    dropped: set[str] = set()
    for row_id, body in zip(table.column("id").to_pylist(), table.column("body").to_pylist(), strict=True):
        # One more row has neither form: the next free id.
        if row_id.startswith(DROPPED):
            dropped.add(row_id.removeprefix(DROPPED))
        elif row_id[:1] in ("u", "s") and row_id[1:].isdigit():
            items[row_id] = codec.decode(row_id, body)
    names: dict[str, str] = {}
    for item in items.values():
        if isinstance(item, Table | Source | SourceTable | MaterializedView):
            schema = items.get(item.schema)
            database = items.get(schema.database or "") if isinstance(schema, Schema) else None
            path = [x.name for x in (database, schema) if isinstance(x, Database | Schema)]
            name = ".".join([*path, item.name])
            if item.shard is not None:
                names[item.shard] = name
            if isinstance(item, Source):
                names[item.remap_shard] = f"{name} (bindings)"
    return names, frozenset(dropped)


def read_holder(blobs: Blobs) -> tuple[int | None, Holder | None]:
    """The format of the directory and its last holder. Raises if the clock shard is missing or damaged."""
    clock = Shard.open(blobs, CLOCK_SHARD, epoch=None)
    return format_of(clock), ClockShard(clock, clock.epoch).holder()
