"""Catalog operation that creates a sink; applied by `ops`.

Sinks with the same target write one stream. Its start is determined here, against the state that the change
applies to, so two concurrent creations agree.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from tidemill.catalog.items import Connection, ItemId, Sink
from tidemill.catalog.source_ops import SourceDraft
from tidemill.errors import InvalidValue
from tidemill.time.shown import show_time
from tidemill.types.model import RelationDesc


@dataclass(frozen=True, slots=True)
class CreateSinkOp:
    """The fields of `Sink`. `as_of` None: the stream begins where that of the same target does, else now."""

    schema: ItemId
    name: str
    type: str
    target: str
    definition: str
    sql: str
    relation: ItemId
    desc: RelationDesc
    as_of: int | None
    snapshot: bool
    connections: tuple[ItemId, ...] = ()


def apply(draft: SourceDraft, op: CreateSinkOp) -> None:
    draft.check_name(op.schema, op.name)
    draft.state.relation(op.relation)
    for needed in op.connections:
        draft.state.get(needed, Connection)
    as_of = op.as_of
    beside = next((sink for sink in draft.state.sinks() if sink.target == op.target), None)
    if beside is not None:
        _check_same(op, beside)
        as_of = beside.as_of
    draft.put(
        Sink(
            draft.new_id(),
            op.name,
            op.schema,
            op.type,
            op.target,
            op.definition,
            op.sql,
            op.relation,
            op.desc,
            draft.time if as_of is None else as_of,
            op.snapshot,
            op.connections,
        )
    )


def _check_same(op: CreateSinkOp, beside: Sink) -> None:
    """Both must write one and the same history, as CDCv2: a topic of keyed rows has one writer."""
    if {_envelope(op.definition), _envelope(beside.definition)} != {"materialize"}:
        differs = "A topic with ENVELOPE UPSERT or DEBEZIUM has one writer."
    elif beside.relation != op.relation:
        differs = "It writes another relation."
    elif beside.desc != op.desc:
        differs = "It writes other columns: the relation was altered since it was made."
    elif beside.snapshot != op.snapshot:
        differs = f"It was made with SNAPSHOT = {str(beside.snapshot).lower()}."
    elif op.as_of not in (None, beside.as_of):
        differs = f"Its stream begins at {show_time(beside.as_of)}."
    else:
        return
    raise InvalidValue(
        f'sink "{beside.name}" writes another history to the same place',
        detail=differs,
        hint="Choose another topic or folder.",
        sqlstate="42710",
    )


def _envelope(definition: str) -> str:
    return json.loads(definition).get("envelope", "materialize")
