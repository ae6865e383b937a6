"""CREATE and ALTER MATERIALIZED VIEW.

The catalog change creates the shard and the item. The view service follows the catalog and starts the view
(`views.service`). `ddl.objects` drops and renames views, `replaced_query` waits for another query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from tidemill.catalog import materialized_ops, ops
from tidemill.catalog.items import MaterializedView, Reference
from tidemill.catalog.state import CatalogState
from tidemill.engine.api import Complete, Outcome
from tidemill.engine.ddl.catalog_changes import CatalogChanges, existing_at, find_or_none, renamed
from tidemill.engine.ddl.kept_query import kept_text
from tidemill.engine.ddl.replaced_query import replace_query
from tidemill.engine.read.local_rows import text_columns, text_rows
from tidemill.engine.read.waiting import Readiness
from tidemill.engine.relations.system import SYSTEM_RELATIONS_BY_ID
from tidemill.engine.session.catalog_view import CatalogView
from tidemill.engine.session.durations import history_ms
from tidemill.engine.session.execution import StatementExecution
from tidemill.engine.session.plan import Action, Plan
from tidemill.errors import Internal, Notice, UndefinedObject, Unsupported, WrongObjectType
from tidemill.inputs.queries import described, followed_whole
from tidemill.inputs.timelines import check_ours
from tidemill.sql import ast
from tidemill.sql.bind import BoundQuery, NameResolver, SessionInfo, bind_query
from tidemill.sql.bind.temporal import check_kept, without_read_time
from tidemill.sql.names import quote_literal
from tidemill.types.model import TEXT, Column, Kind, RelationDesc
from tidemill.views.program import VIEW_SESSION, bind_view

_KIND = ast.ObjectKind.MATERIALIZED_VIEW
_VERB = "CREATE MATERIALIZED VIEW"


def plan_create_materialized_view(
    view: CatalogView, ddl: CatalogChanges, ready: Readiness, statement: ast.CreateMaterializedView
) -> Plan:
    schema, name, existing = existing_at(view, statement.name)
    if existing is not None and statement.if_not_exists:
        return ddl.skip(_VERB, f'relation "{name}" already exists, skipping', "42P07")
    history = history_ms(statement.retain_history)
    if existing is not None and statement.or_replace:
        if not isinstance(existing, MaterializedView):
            raise WrongObjectType(f'"{name}" is not a materialized view', position=statement.name.offset + 1)
        view.privileges().check_owner(existing)
        kept = _kept_query(view, statement.query, statement.columns, incremental=statement.incremental)
        return _replace(ddl, ready, _VERB, existing, kept, history)
    kept = _kept_query(view, statement.query, statement.columns, incremental=statement.incremental)
    op = materialized_ops.CreateMaterializedViewOp(
        schema.id, name, kept.text, kept.desc, kept.references, history
    )
    return ddl.change(_VERB, [op], kept.notices)


@dataclass(frozen=True, slots=True)
class _Kept:
    """The query of a view as the catalog has it."""

    text: str
    desc: RelationDesc
    references: tuple[Reference, ...]
    notices: list[Notice]


def _kept_query(
    view: CatalogView, query: ast.Query, names: Sequence[ast.Ident], *, incremental: bool = False
) -> _Kept:
    resolver = view.resolver()
    bound = bind_kept(query.tree, resolver, view.info())
    _check_stored(bound)
    check_ours(map(view.state.relation, bound.inputs.values()), "a materialized view")
    if incremental:
        _check_incremental(view.state, bound)
    # The columns of a query are nullable, even if those of its inputs are not.
    columns = renamed(bound.columns, names)
    desc = RelationDesc(
        tuple(Column(c.name, TEXT if c.type.kind is Kind.UNKNOWN else c.type) for c in columns)
    )
    text = kept_text(
        query, bound.columns, lambda tree: bind_query(tree, view.resolver(), session=VIEW_SESSION)
    )
    zone = view.info().time_zone
    notices = [_other_zone(zone)] if zone != VIEW_SESSION.time_zone and bound.uses_time_zone else []
    return _Kept(text, desc, resolver.references(), notices)


def _check_incremental(catalog: CatalogState, bound: BoundQuery) -> None:
    because = followed_whole(catalog, bound)
    if because is not None:
        raise Unsupported(
            f"the view would be computed as a whole at each change, because of {because.because}",
            detail="INCREMENTAL = 'required' asks for a view that costs what changed.",
            hint=because.instead,
        )


def _replace(
    ddl: CatalogChanges,
    ready: Readiness,
    verb: str,
    item: MaterializedView,
    kept: _Kept,
    history: int | None = None,
) -> Plan:
    op = materialized_ops.ReplaceQuery(item.id, kept.text, kept.desc, kept.references, history)
    # Errors of the columns and of cycles at once, and not in a transaction that has begun.
    ops.apply_all(ddl.catalog.state, [op], time=ddl.catalog.state.time)

    async def act() -> Outcome:
        for notice in kept.notices:
            ddl.execution.notice(notice)
        await replace_query(ddl, ready, verb, op)
        return Complete(verb)

    return Action(act)


def bind_kept(
    query: exp.Expr,
    names: NameResolver,
    asking: SessionInfo,
    what: str = "a materialized view of a query",
) -> BoundQuery:
    """The query of a new view, or of `what` else, bound for all sessions. Raises if its result depends on the
    session or on the time of evaluation."""
    # An unknown setting is a separate error.
    bound = bind_query(query, names, session=replace(VIEW_SESSION, setting=asking.setting))
    if bound.param_types:
        raise UndefinedObject("there is no parameter $1", sqlstate="42P02")
    without_read_time(check_kept(bound, what).determinism).check_everywhere(what)
    return bound


def _other_zone(zone: str) -> Notice:
    return Notice(
        f"a materialized view reads and shows times in {VIEW_SESSION.time_zone}",
        detail=f'The TimeZone of this session is "{zone}".',
        hint=f"Write AT TIME ZONE {quote_literal(zone)} where times of that zone are meant.",
    )


def _check_stored(bound: BoundQuery) -> None:
    system = [r for i in bound.inputs.values() if (r := SYSTEM_RELATIONS_BY_ID.get(i)) is not None]
    if system:
        raise Unsupported(
            f'a materialized view cannot read system relation "{system[0].schema}.{system[0].name}"',
            detail="System relations show what is now and keep no history.",
            hint="Use a view, or SUBSCRIBE to the query.",
        )


def plan_alter_materialized_view(
    view: CatalogView, ddl: CatalogChanges, ready: Readiness, statement: ast.AlterMaterializedView
) -> Plan:
    verb = f"ALTER {_KIND.value}"
    item, notice = find_or_none(view, _KIND, statement.name, if_exists=statement.if_exists)
    if item is None:
        return ddl.change(verb, (), [notice] if notice else [])
    action = statement.action
    if isinstance(action, ast.Query):
        if not isinstance(item, MaterializedView):
            raise Internal(f"{statement.name} is no materialized view")
        return _replace(ddl, ready, verb, item, _kept_query(view, action, ()))
    return ddl.change(verb, [materialized_ops.SetViewHistory(item.id, history_ms(action.duration))])


def _explained(catalog: CatalogState, item: MaterializedView) -> list[str]:
    bound = bind_view(catalog, item)
    how, *more = described(catalog, bound)
    return [f"Kept up to date: {how}", *more, *bound.describe().splitlines()]


def plan_explain_materialized_view(
    view: CatalogView, execution: StatementExecution, statement: ast.ExplainMaterializedView
) -> Plan:
    item, _ = find_or_none(view, _KIND, statement.name, if_exists=False)
    if not isinstance(item, MaterializedView):
        raise Internal(f"{statement.name} is no materialized view")
    columns = text_columns("QUERY PLAN")

    async def act() -> Outcome:
        lines = await execution.blocking(_explained, view.state, item)
        return text_rows(["QUERY PLAN"], [(line,) for line in lines], tag="EXPLAIN")

    return Action(act, columns)
