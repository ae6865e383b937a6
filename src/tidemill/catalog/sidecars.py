"""Sidecar shards: state that the envelope of a relation must remember. `SIDECARS` lists the envelopes.

ENVELOPE MATERIALIZE (CDCv2) has several. The stash holds updates until their times are complete. The tally
holds the frontiers, and the statements and counts of incomplete times. If the rows keep the times of the
stream, the clock shard holds our times: it is empty, and its upper shows which bindings are done.

ENVELOPE DEBEZIUM has one: the greatest position of each partition, by which repetitions are known.

A source whose upstream cannot be asked for a range again has an inbox: what was received from it.

Sidecars are created and dropped with their relation, and only its ticks read them (`ingest.recovery`,
`ingest.changes`). Their names and columns derive from the relation, so the catalog does not store them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from tidemill.types.model import BOOL, INT8, TEXT, Column, RelationDesc

# As the catalog names the envelopes.
MATERIALIZE, DEBEZIUM = "materialize", "debezium"

# After the columns of the data: the diff of the update, and its origin. (For times see `time_names`.)
DIFF, PARTITION, OFFSET = "diff", "partition", "offset"

# One row per known fact: its subject, and JSON.
FACTS_DESC = RelationDesc((Column("item", TEXT, nullable=False), Column("value", TEXT, nullable=False)))

# No rows: what counts is how far it is complete.
CLOCK_DESC = RelationDesc(())

# What was received from PubNub, and (`state`) where the subscription stands behind an append.
INBOX_DESC = RelationDesc(
    (
        Column("region", INT8),
        Column("position", INT8),
        Column("timetoken", INT8),
        Column("channel", TEXT),
        Column("subscription", TEXT),
        Column("publisher", TEXT),
        Column("payload", TEXT),
        Column("quoted", BOOL),
        Column("error", TEXT),
        Column("state", TEXT),
    )
)
# By the type of a source: its inbox.
INBOXES: dict[str, RelationDesc] = {"pubnub": INBOX_DESC}
# Types of sources that have something upstream, which a drop must remove (`UpstreamSource.dropped`).
OWING = frozenset({"postgres"})


def inbox_id(remap_shard: str) -> str:
    return f"{remap_shard}-inbox"


def stash_id(shard: str) -> str:
    return f"{shard}-stash"


def tally_id(shard: str) -> str:
    return f"{shard}-tally"


def positions_id(shard: str) -> str:
    return f"{shard}-positions"


def clock_id(shard: str) -> str:
    return f"{shard}-clock"


def kind_of(definition: str | None) -> int:
    """Of how many numbers the times of a definition's CDCv2 stream are products; 0: they are integers."""
    parsed = json.loads(definition or "{}")
    specs = [parsed, parsed.get("output") or {}, *parsed.get("outputs", ())]
    found = (spec["value"].get("components", 0) for spec in specs if spec.get("value"))
    return next(found, 0)


def data_names(width: int) -> list[str]:
    """The data's columns in the stash. These names never equal those of other columns, independent of the
    relation's names."""
    return [f"d{n}" for n in range(width)]


def time_names(kind: int) -> list[str]:
    """One for each component of a time; an integer has one."""
    return [f"t{n}" for n in range(max(kind, 1))]


def stash_desc(desc: RelationDesc, kind: int = 0) -> RelationDesc:
    """The stash of a relation whose stream has times of `kind`."""
    names = data_names(len(desc.columns))
    data = [Column(name, column.type) for name, column in zip(names, desc.columns, strict=True)]
    times = [Column(name, INT8, nullable=False) for name in time_names(kind)]
    origin = [Column(PARTITION, TEXT, nullable=False), Column(OFFSET, INT8, nullable=False)]
    return RelationDesc((*data, *times, Column(DIFF, INT8, nullable=False), *origin))


def _materialize(
    shard: str, desc: RelationDesc, definition: str | None, timeline: str | None
) -> list[tuple[str, RelationDesc]]:
    clock = [] if timeline is None else [(clock_id(shard), CLOCK_DESC)]
    return [(stash_id(shard), stash_desc(desc, kind_of(definition))), (tally_id(shard), FACTS_DESC), *clock]


def _debezium(
    shard: str, desc: RelationDesc, definition: str | None, timeline: str | None
) -> list[tuple[str, RelationDesc]]:
    return [(positions_id(shard), FACTS_DESC)]


# By the envelope, as the catalog names it: the shards beside that of a relation, and their columns.
SIDECARS: dict[
    str, Callable[[str, RelationDesc, str | None, str | None], Sequence[tuple[str, RelationDesc]]]
] = {MATERIALIZE: _materialize, DEBEZIUM: _debezium}


def sidecars_of(
    envelope: str | None, shard: str, desc: RelationDesc, definition: str | None, timeline: str | None
) -> Sequence[tuple[str, RelationDesc]]:
    make = SIDECARS.get(envelope or "")
    return () if make is None else make(shard, desc, definition, timeline)
