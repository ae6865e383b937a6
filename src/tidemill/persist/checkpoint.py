"""Checkpoints of a shard's log. Off the hot path.

delta-rs reads the log and writes the checkpoint. Its result is first compared with our state, so each
checkpoint also verifies the log with an independent implementation. The checkpoint and the hint that names it
are synced before `clean` relies on them.
"""

from __future__ import annotations

from dataclasses import dataclass

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from tidemill import failpoints
from tidemill.errors import DataCorrupted
from tidemill.persist.blob import Blobs
from tidemill.persist.entry import EPOCH_APP, SINCE_APP, UPPER_APP
from tidemill.persist.log import checkpoint_path, hint_path
from tidemill.persist.state import ShardState

FP_WRITTEN = failpoints.register("persist.checkpoint.written", "delta-rs wrote a checkpoint, not synced")
FP_SYNCED = failpoints.register("persist.checkpoint.synced", "a checkpoint is durable, nothing cleaned")


@dataclass(frozen=True, slots=True)
class Expected:
    """What our state says of the version that gets the checkpoint."""

    version: int
    paths: frozenset[str]
    txns: dict[str, int]


def expect(state: ShardState) -> Expected:
    """Call under the state's lock."""
    txns = {UPPER_APP: state.upper, SINCE_APP: state.since, EPOCH_APP: state.epoch}
    return Expected(state.version, frozenset(state.parts), txns)


def write_checkpoint(blobs: Blobs, shard_id: str, expected: Expected) -> None:
    """Write and sync the checkpoint of that version."""
    uri, options = blobs.table_uri(f"shards/{shard_id}")
    try:
        table = DeltaTable(uri, version=expected.version, storage_options=options or None)
        _verify(table, shard_id, expected)
        table.create_checkpoint()
    except DeltaError as error:
        raise DataCorrupted(
            f"could not checkpoint shard {shard_id} at version {expected.version}", detail=str(error)
        ) from error
    failpoints.hit(FP_WRITTEN)
    blobs.sync([checkpoint_path(shard_id, expected.version), hint_path(shard_id)])
    failpoints.hit(FP_SYNCED)


def _verify(table: DeltaTable, shard_id: str, expected: Expected) -> None:
    live = frozenset(table.get_add_actions().column("path").to_pylist())
    txns = {app: table.transaction_version(app) for app in expected.txns}
    if live != expected.paths or txns != expected.txns:
        raise DataCorrupted(
            f"the log of shard {shard_id} reads differently to delta-rs",
            detail=f"Version {expected.version}: {len(live)} live files and {txns}, "
            f"we have {len(expected.paths)} and {expected.txns}.",
            hint="No checkpoint was written and no entry was cleaned; this is a bug worth reporting.",
        )
