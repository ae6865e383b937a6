"""CREATE SINK. The catalog change creates the item; `sinks.service` follows the catalog and runs it.

Checks everything before the change: that the destination is reachable and writable, that it is empty or
continues the same history, and that the registry accepts the schema. `ddl.objects` drops and renames
sinks.
"""

from __future__ import annotations

from dataclasses import replace

from tidemill.catalog import ops, sink_ops
from tidemill.catalog.items import Sink, SourceProgress, View
from tidemill.engine.api import Complete, Outcome
from tidemill.engine.ddl.catalog_changes import CatalogChanges, item_at
from tidemill.engine.ddl.external import External
from tidemill.engine.ddl.sink_targets import SinkRequest, describe_sink
from tidemill.engine.session.catalog_view import CatalogView
from tidemill.engine.session.plan import Action, Plan
from tidemill.errors import WrongObjectType
from tidemill.inputs.collections import Collections
from tidemill.inputs.timelines import check_ours
from tidemill.sinks.feed import Sinkable
from tidemill.sql import ast
from tidemill.sql.render import to_sql

_VERB = "CREATE SINK"


def plan_create_sink(
    view: CatalogView,
    ddl: CatalogChanges,
    collections: Collections,
    external: External,
    statement: ast.CreateSink,
) -> Plan:
    schema, name, existing = item_at(view, statement.name)
    if existing is not None:
        if statement.if_not_exists and isinstance(existing, Sink):
            return ddl.skip(_VERB, f'sink "{name}" already exists, skipping', "42710")
        raise ops.already_exists(existing)
    relation = _relation(view, statement.relation)
    request = SinkRequest(view, collections, external, statement, relation)

    async def act() -> Outcome:
        definition = await ddl.execution.interrupt.guard(ddl.execution.blocking(describe_sink, request))
        connections = (definition.connection, definition.registry)
        op = sink_ops.CreateSinkOp(
            schema.id,
            name,
            definition.kind,
            definition.target,
            definition.to_json(),
            to_sql(replace(statement, if_not_exists=False, cluster=None, join=False)),
            relation.id,
            request.desc,
            statement.as_of,
            statement.snapshot,
            tuple(c for c in connections if c is not None),
        )
        await ddl.transact(_VERB, [op])
        return Complete(_VERB)

    return Action(act)


def _relation(view: CatalogView, name: ast.Name) -> Sinkable:
    """The stored relation that the sink writes."""
    item = view.resolver().any_item(name)
    position = name.offset + 1
    if isinstance(item, View):
        raise WrongObjectType(
            f'a sink cannot be made from view "{item.name}"',
            detail="A view is not stored, and has no history of its own.",
            hint="CREATE MATERIALIZED VIEW keeps its rows, and a sink can be made from that.",
            position=position,
        )
    if isinstance(item, SourceProgress) or not isinstance(item, Sinkable):
        raise WrongObjectType(
            f'a sink cannot be made from "{item.name}"',
            hint="It is made from a table, a source, or a materialized view.",
            position=position,
        )
    check_ours([item], "a sink")
    view.resolver().desc(item, position)
    view.privileges().check(item, "SELECT")
    return item
