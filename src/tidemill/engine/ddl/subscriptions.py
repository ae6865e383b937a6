"""CREATE SUBSCRIPTION and ALTER SUBSCRIPTION ... RESET.

The catalog change creates the item; `subscriptions.service` follows the catalog and holds the history.
Everything that could keep its changes from being computed again, exactly, is refused here. `ddl.objects`
drops and renames subscriptions, `engine.subscribe.durable` reads them.
"""

from __future__ import annotations

from dataclasses import replace

from tidemill.catalog import ops
from tidemill.catalog.items import (
    RELATIONS,
    MaterializedView,
    Source,
    SourceTable,
    Subscription,
    Table,
    kind_name,
)
from tidemill.catalog.subscription_ops import CreateSubscriptionOp
from tidemill.engine.api import Complete, Outcome
from tidemill.engine.ddl.catalog_changes import CatalogChanges, find_or_none, item_at
from tidemill.engine.ddl.kept_query import kept_text
from tidemill.engine.ddl.materialized_views import bind_kept
from tidemill.engine.read.select import table_query
from tidemill.engine.session.catalog_view import CatalogView
from tidemill.engine.session.durations import MAX_HISTORY_MS, milliseconds
from tidemill.engine.session.plan import Action, Plan
from tidemill.engine.session.setting_numbers import SettingUnit, parse_integer
from tidemill.engine.subscribe.reading import Readings
from tidemill.errors import Internal, InvalidValue, Unsupported, WrongObjectType
from tidemill.inputs.queries import is_linear
from tidemill.inputs.timelines import check_ours
from tidemill.sql import ast
from tidemill.sql.bind import BoundQuery, bind_query
from tidemill.sql.plan.repeatable import why_not_repeatable
from tidemill.subscribe.resolve import spec_for
from tidemill.subscribe.spec import Spec
from tidemill.subscriptions.query import SUBSCRIPTION_SESSION, places
from tidemill.subscriptions.service import DurableSubscriptions
from tidemill.types.model import TEXT, Kind, RelationDesc

_KIND = ast.ObjectKind.SUBSCRIPTION
_VERB = "CREATE SUBSCRIPTION"
_SIZES = SettingUnit(
    "B",
    'Write a size such as \'10 GB\'; the units are "B", "kB", "MB", "GB", and "TB".',
    {"TB": 1 << 40, "GB": 1 << 30, "MB": 1 << 20, "kB": 1 << 10, "B": 1},
)
# Each share is a reader of its own, with a row for its position.
MAX_SHARES = 256
MAX_SIZE = 1 << 50  # anything larger is a typing mistake


def plan_create_subscription(
    view: CatalogView, ddl: CatalogChanges, statement: ast.CreateSubscription
) -> Plan:
    schema, name, existing = item_at(view, statement.name)
    if existing is not None:
        if statement.if_not_exists and isinstance(existing, Subscription):
            return ddl.skip(_VERB, f'subscription "{name}" already exists, skipping', "42710")
        raise ops.already_exists(existing)
    relation = statement.relation
    if isinstance(relation, ast.Name):
        _check_relation(view, relation)
    query = table_query(relation) if isinstance(relation, ast.Name) else relation
    resolver = view.resolver()
    bound = bind_kept(query.tree, resolver, view.info(), "a durable subscription")
    _check_repeatable(view, bound)
    typed = [replace(c, type=TEXT) if c.type.kind is Kind.UNKNOWN else c for c in bound.columns]
    desc = RelationDesc(tuple(typed))
    named = relation.item if isinstance(relation, ast.Name) else None
    spec = spec_for(desc.columns, statement.envelope or ast.SubscribePlain(), relation=named)
    text = kept_text(
        query, bound.columns, lambda tree: bind_query(tree, view.resolver(), session=SUBSCRIPTION_SESSION)
    )
    op = CreateSubscriptionOp(
        schema.id,
        name,
        text,
        view.resolver().item(relation).id if isinstance(relation, ast.Name) else None,
        desc,
        resolver.references(),
        spec.output.value,
        tuple(desc.columns[i].name for i in spec.keys),
        statement.snapshot,
        _retain_ms(statement.retain),
        _retain_bytes(statement.retain_size),
        statement.shares,
        _share_key(statement, desc, spec),
    )
    return ddl.change(_VERB, [op])


def plan_reset_subscription(
    view: CatalogView,
    ddl: CatalogChanges,
    service: DurableSubscriptions,
    readings: Readings,
    statement: ast.ResetSubscription,
) -> Plan:
    item, notice = find_or_none(view, _KIND, statement.name, if_exists=statement.if_exists)
    if item is None:
        return ddl.change("ALTER SUBSCRIPTION", (), [notice] if notice else [])
    if not isinstance(item, Subscription):
        raise Internal(f"{statement.name} is no subscription")

    async def act() -> Outcome:
        await ddl.by_itself("ALTER SUBSCRIPTION")
        for place in places(item):
            readings.remove(place)
        await ddl.execution.blocking(service.reset, item)
        return Complete("ALTER SUBSCRIPTION")

    return Action(act)


def _check_relation(view: CatalogView, name: ast.Name) -> None:
    found = view.resolver().any_item(name)
    if not isinstance(found, RELATIONS):
        raise WrongObjectType(
            f'a subscription cannot be made for {kind_name(found)} "{found.name}"', position=name.offset + 1
        )


def _check_repeatable(view: CatalogView, bound: BoundQuery) -> None:
    """Its changes after any position that a reader has stored can be computed again, and are the same."""
    hint = "CREATE MATERIALIZED VIEW keeps the rows of a query: subscribe to that."
    if not bound.columns:
        raise Unsupported("a durable subscription without columns is not supported")
    if not bound.inputs:
        raise Unsupported("a durable subscription needs a relation to follow", detail="Its query reads none.")
    for relation_id in bound.inputs.values():
        item = view.state.items.get(relation_id)
        if not isinstance(item, Table | Source | SourceTable | MaterializedView):
            raise Unsupported(
                "a durable subscription cannot follow system relations or progress relations",
                detail="Their changes are not kept.",
                hint="SUBSCRIBE to the query.",
            )
    check_ours(map(view.state.relation, bound.inputs.values()), "a durable subscription")
    if not is_linear(view.state, bound):
        because = "mz_now()" if bound.uses_mz_now else why_not_repeatable(bound.plan)
        if because is not None:
            raise Unsupported(
                f"a durable subscription to a query with {because} is not supported",
                detail="A reader that continues needs the result of earlier times again, exactly as it was.",
                hint=hint,
            )


def _share_key(statement: ast.CreateSubscription, desc: RelationDesc, spec: Spec) -> tuple[str, ...]:
    """The columns whose values decide which share has a row. All changes of a key go to one share."""
    if not 1 <= statement.shares <= MAX_SHARES:
        raise InvalidValue(f"SHARES must be between 1 and {MAX_SHARES}", sqlstate="22023")
    if statement.shares == 1:
        if statement.share_key:
            raise InvalidValue("SHARE KEY needs SHARES", hint="Write how many readers there are: SHARES = 4.")
        return ()
    keys = spec.keys
    if statement.share_key:
        keys = spec_for(desc.columns, ast.EnvelopeUpsert(statement.share_key)).keys
    if not keys:
        raise InvalidValue(
            "SHARES needs a key", hint="SHARE KEY = (column, ...) says which rows belong together."
        )
    if spec.keys and not set(keys) <= set(spec.keys):
        raise InvalidValue(
            "SHARE KEY must be a part of the key of ENVELOPE",
            detail="Of a deleted key, the other columns are NULL.",
        )
    return tuple(desc.columns[i].name for i in keys)


def _retain_ms(text: str | None) -> int | None:
    if text is None:
        return None
    ms = milliseconds(text)
    if not 0 < ms <= MAX_HISTORY_MS:
        raise InvalidValue(f'RETAIN cannot be "{text}"', hint="Give a positive duration.", sqlstate="22023")
    return ms


def _retain_bytes(text: str | None) -> int | None:
    return None if text is None else parse_integer("RETAIN SIZE", text, 1, MAX_SIZE, _SIZES)
