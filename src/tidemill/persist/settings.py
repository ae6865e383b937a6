"""Maintenance settings of a shard: named limits with reasons. Tests and benchmarks can override them.

The two ages belong to the table: every process that opens it must agree on them. The other settings belong to
the process.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tidemill.errors import DataCorrupted

MIB = 1 << 20

_LOG_AGE = "delta.logRetentionDuration"
_REMOVED_AGE = "delta.deletedFileRetentionDuration"
_SECONDS = re.compile(r"interval (\d+) seconds")

_SLACK = "tidemill.sweepSlack"


@dataclass(frozen=True, slots=True)
class Ages:
    """How long the log and removed files are kept. Two hours of log at one commit a second are 7,200 small
    files. Removed files stay an hour because readers of other programs have no holds."""

    log_keep_seconds: int = 2 * 3600
    removed_keep_seconds: int = 3600
    # Tombstones stay in checkpoints this much longer than their files must stay on disk, so that a sweep
    # which runs late still learns of them from the log.
    sweep_slack_seconds: int = 600

    def configuration(self) -> dict[str, str]:
        made = {
            _LOG_AGE: f"interval {self.log_keep_seconds} seconds",
            _REMOVED_AGE: f"interval {self.removed_keep_seconds + self.sweep_slack_seconds} seconds",
            # We clean up ourselves, after the checkpoint is synced.
            "delta.enableExpiredLogCleanup": "false",
        }
        if self.sweep_slack_seconds != DEFAULT_AGES.sweep_slack_seconds:
            made[_SLACK] = f"interval {self.sweep_slack_seconds} seconds"
        return made


DEFAULT_AGES = Ages()


def ages_of(configuration: Mapping[str, str]) -> Ages:
    """The ages that a table's configuration names."""
    default = f"interval {DEFAULT_AGES.sweep_slack_seconds} seconds"
    try:
        texts = (configuration[_LOG_AGE], configuration[_REMOVED_AGE], configuration.get(_SLACK, default))
    except KeyError as error:
        raise DataCorrupted("the table's metadata lacks its retention", detail=str(error)) from error
    log, removed, slack = (_SECONDS.fullmatch(text) for text in texts)
    if log is None or removed is None or slack is None:
        raise DataCorrupted("the table's retention is not understood")
    return Ages(int(log[1]), int(removed[1]) - int(slack[1]), int(slack[1]))


@dataclass(frozen=True, slots=True)
class Settings:
    """The process's own limits."""

    # A checkpoint takes about 10 ms. Opening a shard reads at most this many entries after it.
    checkpoint_every: int = 50
    # Cleaning the log begins so long after opening: it lists the log's folder, once (7,200 names at rest).
    clean_after_seconds: float = 300.0
    # Merging in memory holds the rows twice, with hashes and orders: some three times their size, a fifth of
    # a gigabyte. Spark merges larger shards. This limit and the next are in part weights (`Part.weight`).
    compact_max_bytes: int = 64 * MIB
    # Parts of this size read well and gain little from being merged further; a worker that makes one holds
    # as much as above.
    part_target_bytes: int = 64 * MIB
    # Full consolidation of the updates before since: when it removes at least this share of them.
    compact_min_gain: float = 0.3
    # Files that an interrupted writer left behind are not touched before this age.
    orphan_grace_seconds: float = 3600.0
    # Looking for them lists every part of the shard.
    orphan_every_seconds: float = 3600.0


DEFAULT_SETTINGS = Settings()
