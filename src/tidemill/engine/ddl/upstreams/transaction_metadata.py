"""TRANSACTION METADATA of the envelopes of Debezium: checks the source of the transaction topic."""

from __future__ import annotations

import json
from typing import Any

from tidemill.catalog.items import Source
from tidemill.engine.ddl.upstreams.described import DescribeContext
from tidemill.errors import TidemillError, Unsupported, WrongObjectType
from tidemill.sources.definition import KAFKA
from tidemill.sources.kafka.transactions import FORMATS
from tidemill.sql.parser.envelopes.debezium import Debezium
from tidemill.sql.parser.envelopes.debezium_upsert import DebeziumUpsert
from tidemill.sql.parser.envelopes.transaction_metadata import TransactionMetadata

_HINT = (
    "Create it from the topic that provide.transaction.metadata = true makes, usually called "
    "<topic.prefix>.transaction, with FORMAT AVRO or JSON and ENVELOPE NONE."
)
# The fields of an announcement that are read.
_FIELDS = {"status", "id", "data_collections"}


def describe_transactions(
    envelope: Debezium | DebeziumUpsert, context: DescribeContext
) -> dict[str, dict[str, Any]]:
    """The option in the definition; nothing without it. Raises what is wrong with the source."""
    said = envelope.transactions
    if said is None:
        return {}
    source = context.find_source(said.source)
    try:
        _check(source)
    except TidemillError as error:
        error.position = said.source.offset + 1
        raise
    return {"transactions": {"source": source.id, "collection": said.collection}}


def refuse_transactions(said: TransactionMetadata, table: str) -> Unsupported:
    return Unsupported(
        "TRANSACTION METADATA is not possible with CREATE TABLE ... FROM SOURCE",
        detail=f'Table "{table}" would be bound together with the other tables of its source.',
        hint="Create a source for the topic: CREATE SOURCE ... FROM KAFKA ... ENVELOPE DEBEZIUM (TRANSACTION "
        "METADATA (...)).",
        position=said.offset + 1,
    )


def _check(source: Source) -> None:
    definition: dict[str, Any] = json.loads(source.definition)
    if source.type != KAFKA or source.desc is None or source.envelope != "none":
        raise WrongObjectType(f'source "{source.name}" is not of a transaction topic', hint=_HINT)
    form = definition["outputs"][0]["value"]["format"]
    names = {column.name for column in source.desc.columns}
    if form not in FORMATS or (form == "avro" and not names >= _FIELDS):
        detail = f"The format of its messages is {form.upper()}."
        if form in FORMATS:
            detail = f"Its messages have no {', '.join(sorted(_FIELDS - names))}."
        raise WrongObjectType(
            f'source "{source.name}" is not of a transaction topic', detail=detail, hint=_HINT
        )
    if len(definition["partitions"]) > 1:
        raise WrongObjectType(
            f'source "{source.name}" is not of a transaction topic',
            detail=f'Topic "{definition["topic"]}" has {len(definition["partitions"])} partitions; only one '
            "keeps the order of transactions.",
            hint="Make the topic with one partition, and begin again with a new connector.",
        )
