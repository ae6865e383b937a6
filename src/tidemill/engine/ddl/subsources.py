"""ALTER SOURCE ... ADD SUBSOURCE and DROP SUBSOURCE."""

from __future__ import annotations

from tidemill.catalog import ops, source_ops
from tidemill.catalog.items import Schema, Source, SourceTable
from tidemill.engine.api import Complete, Outcome
from tidemill.engine.ddl.catalog_changes import CatalogChanges, find_or_none
from tidemill.engine.ddl.external import External
from tidemill.engine.ddl.sources import context, subsource, wait_bound
from tidemill.engine.ddl.upstreams import ADDED
from tidemill.engine.session.catalog_view import CatalogView
from tidemill.engine.session.plan import Action, Plan
from tidemill.errors import DuplicateObject, Notice, UndefinedObject, Unsupported, WrongObjectType
from tidemill.sources.offsets import Offsets
from tidemill.sql import ast

_VERB = "ALTER SOURCE"


def plan_add_subsources(
    view: CatalogView, ddl: CatalogChanges, external: External, statement: ast.AddSubsources
) -> Plan:
    source, notice = _source(view, statement.name, if_exists=statement.if_exists)
    if source is None:
        return ddl.change(_VERB, (), [notice] if notice else [])
    if source.type not in ADDED:
        raise Unsupported(
            f"ADD SUBSOURCE is not possible for a {source.type} source",
            hint=f"Use CREATE TABLE ... FROM SOURCE {ast.Ident(source.name)} (REFERENCE ...)."
            if source.desc is None
            else "It is one relation, the source itself.",
            position=statement.name.offset + 1,
        )

    def work_out() -> tuple[list[ops.Op], Offsets]:
        tables, at = ADDED[source.type](source, statement, context(view, external))
        schema = view.state.get(source.schema, Schema)
        changes: list[ops.Op] = []
        for table in tables:
            new = subsource(view, schema, table)
            other = view.state.find(source.schema, new.name)
            if other is not None:
                raise DuplicateObject(
                    f'relation "{new.name}" already exists',
                    hint="Write ADD SUBSOURCE table AS another.",
                    sqlstate="42P07",
                    position=table.name.offset + 1,
                )
            changes.append(source_ops.AddSubsource(source.id, new))
        return changes, at

    async def act() -> Outcome:
        changes, at = await ddl.execution.interrupt.guard(ddl.execution.blocking(work_out))
        await wait_bound(ddl.execution, external, source, at)
        await ddl.transact(_VERB, changes)
        return Complete(_VERB)

    return Action(act)


def plan_drop_subsources(view: CatalogView, ddl: CatalogChanges, statement: ast.DropSubsources) -> Plan:
    source, notice = _source(view, statement.name, if_exists=statement.if_exists)
    if source is None:
        return ddl.change(_VERB, (), [notice] if notice else [])
    changes: list[ops.Op] = []
    notices: list[Notice] = []
    for name in statement.subsources:
        try:
            item = view.resolver().any_item(name)
        except UndefinedObject:
            if not statement.if_subsource_exists:
                raise
            notices.append(Notice(f'subsource "{name.item}" does not exist, skipping'))
            continue
        if not isinstance(item, SourceTable) or item.source != source.id or item.owner != source.id:
            raise WrongObjectType(
                f'"{item.name}" is not a subsource of source "{source.name}"', position=name.offset + 1
            )
        if item.dead_letters_of is not None:
            raise WrongObjectType(
                f'"{item.name}" has the dead letters of source "{source.name}"',
                hint="It is dropped with it alone.",
                position=name.offset + 1,
            )
        changes.append(ops.DropOp(item.id, statement.cascade, of=source.id))
    return ddl.change(_VERB, changes, notices)


def _source(view: CatalogView, name: ast.Name, *, if_exists: bool) -> tuple[Source | None, Notice | None]:
    item, notice = find_or_none(view, ast.ObjectKind.SOURCE, name, if_exists=if_exists)
    if item is not None and not isinstance(item, Source):
        raise WrongObjectType(f'"{item.name}" is not a source of its own', position=name.offset + 1)
    return item, notice
