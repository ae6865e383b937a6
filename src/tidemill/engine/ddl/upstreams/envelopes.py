"""The options of ENVELOPE: makes the `envelope` of an output in the definition from the clause.

`OPTIONS` lists the envelopes with options; for the others the definition stores only the kind. ENVELOPE
MATERIALIZE is not in it: its options belong to the format (`formats.resolve_stream`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tidemill.engine.ddl.upstreams.described import DescribeContext
from tidemill.engine.ddl.upstreams.transaction_metadata import describe_transactions
from tidemill.errors import TidemillError, Unsupported
from tidemill.sources.kafka.layout import order_of
from tidemill.sql import ast
from tidemill.sql.parser.envelopes.debezium import Debezium
from tidemill.sql.parser.envelopes.debezium_upsert import DebeziumUpsert
from tidemill.sql.parser.envelopes.upsert import Upsert

ORDER_BY_PARAMETER = "enable_upsert_order_by"

Includes = Sequence[Mapping[str, Any]]


def describe_envelope(envelope: ast.Envelope, include: Includes, context: DescribeContext) -> dict[str, Any]:
    """Raises if the options are invalid. `include` lists the metadata columns of the output."""
    describe = OPTIONS.get(type(envelope))
    options = {} if describe is None else describe(envelope, include, context)
    return {"kind": envelope.kind.lower(), **options}


def _upsert(envelope: Upsert, include: Includes, context: DescribeContext) -> dict[str, Any]:
    order = None
    if envelope.key:
        raise Unsupported(
            "KEY in ENVELOPE UPSERT is not possible here",
            detail="Messages have keys of their own.",
            hint="Write KEY FORMAT ... VALUE FORMAT ... in place of FORMAT ....",
            position=envelope.key[0].offset + 1,
        )
    if envelope.order_by:
        if not context.order_by:
            raise Unsupported(
                "ENVELOPE UPSERT (ORDER BY ...) is not enabled",
                hint=f"ALTER SYSTEM SET {ORDER_BY_PARAMETER} = on enables it.",
                position=envelope.offset + 1,
            )
        try:
            order = order_of([column.value for column in envelope.order_by], include)
        except TidemillError as e:
            e.position = envelope.order_by[0].offset + 1
            raise
    inline = envelope.inline_errors
    return {"order_by": order, "inline_errors": None if inline is None else inline.value}


def _transactions(
    envelope: Debezium | DebeziumUpsert, include: Includes, context: DescribeContext
) -> dict[str, Any]:
    return describe_transactions(envelope, context)


# The first argument has the class that is the key of the entry.
OPTIONS: dict[type[ast.Envelope], Callable[[Any, Includes, DescribeContext], dict[str, Any]]] = {
    Upsert: _upsert,
    Debezium: _transactions,
    DebeziumUpsert: _transactions,
}
