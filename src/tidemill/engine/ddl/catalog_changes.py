"""Name lookup and catalog transactions, shared by all DDL statements.

DDL commits immediately. In a transaction block it is allowed only before the block has read or written,
with a warning that it cannot be rolled back. Earlier writes of an implicit transaction are committed
first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa

from tidemill.catalog import ops
from tidemill.catalog.items import (
    RELATIONS,
    Item,
    Relation,
    Schema,
    SchemaItem,
    SourceProgress,
    SourceTable,
    Table,
    is_system,
)
from tidemill.catalog.state import CatalogState
from tidemill.engine.api import Complete, Outcome
from tidemill.engine.relations.kinds import statement_kind
from tidemill.engine.session.plan import Action
from tidemill.engine.session.session import EngineSession
from tidemill.engine.session.transaction import Mode
from tidemill.errors import InvalidTransactionState, Notice, UndefinedObject, WrongObjectType
from tidemill.sql import ast
from tidemill.types.model import Column, plain


async def transact(
    s: EngineSession,
    verb: str,
    changes: Sequence[ops.Op],
    contents: pa.Table | None = None,
    reads: Mapping[str, int] | None = None,
) -> CatalogState:
    """Applies the changes, after the session's transaction is prepared. `contents` and `reads` as for
    `Catalog.transact`."""
    await by_itself(s, verb)
    return await s.blocking(partial(transact_now, s, verb, list(changes), contents=contents, reads=reads))


def transact_now(
    s: EngineSession,
    verb: str,
    changes: Sequence[ops.Op],
    *,
    contents: pa.Table | None = None,
    reads: Mapping[str, int] | None = None,
    unaltered: Table | None = None,
    before: Callable[[CatalogState, CatalogState], None] | None = None,
) -> CatalogState:
    """`Catalog.transact` as the session's role, which owns new items. The audit log records the change.
    Blocks."""
    states: list[tuple[CatalogState, CatalogState]] = []

    def look(old: CatalogState, new: CatalogState) -> None:
        states.append((old, new))
        if before is not None:
            before(old, new)

    catalog = s.engine.catalog
    new = catalog.transact(
        changes,
        contents=contents,
        reads=reads,
        unaltered=unaltered,
        before=look,
        owner=s.identity.acting_role(catalog.state).id,
    )
    s.engine.audit.changed(s, verb, *states[-1])
    return new


async def by_itself(s: EngineSession, verb: str) -> None:
    """Prepares an immediate commit: nothing in a transaction block, else the commit of earlier writes."""
    transaction = s.current
    if transaction.read_only:
        raise InvalidTransactionState(f"cannot execute {verb} in a read-only transaction", sqlstate="25006")
    if transaction.explicit:
        if transaction.mode is not Mode.OPEN:
            raise InvalidTransactionState(
                f"{verb} cannot run in a transaction block that has already read or written",
                hint="COMMIT first, and run it by itself.",
                sqlstate="25001",
            )
        s.notice(Notice(f"{verb} takes effect at once and cannot be rolled back", "WARNING"))
    elif transaction.writes:
        await s.engine.commits.commit(transaction)
        transaction.writes.clear()
        transaction.lasting.append(f"what was written before {verb}")
    s.at_once = verb


def change(verb: str, changes: Sequence[ops.Op], notices: Sequence[Notice] = ()) -> Action:
    async def act(s: EngineSession) -> Outcome:
        for notice in notices:
            s.notice(notice)
        if changes:
            await transact(s, verb, changes)
        return Complete(verb)

    return Action(act)


def skip(verb: str, text: str, sqlstate: str) -> Action:
    return change(verb, (), [Notice(text, sqlstate=sqlstate)])


def existing_at(
    s: EngineSession, name: ast.Name, catalog: CatalogState
) -> tuple[Schema, str, Relation | None]:
    """The location of a new relation of that name, and the existing relation there, if any."""
    schema, item, existing = item_at(s, name, catalog)
    if existing is not None and not isinstance(existing, RELATIONS):
        raise ops.already_exists(existing)
    return schema, item, existing


def item_at(s: EngineSession, name: ast.Name, catalog: CatalogState) -> tuple[Schema, str, SchemaItem | None]:
    schema, item = catalog.resolve_new(name.parts, s.database, s.variables.search_path())
    mine = s.identity.privileges(catalog)
    mine.check_place(schema)
    mine.check(schema, "CREATE")
    return schema, item, catalog.find(schema.id, item)


def find(s: EngineSession, kind: ast.ObjectKind, name: ast.Name, catalog: CatalogState) -> Item:
    """The item that the statement names. Raises WrongObjectType for another kind, PermissionDenied for an
    item of another owner."""
    item = _find(s, kind, name, catalog)
    # The change itself refuses system objects, with its own error.
    if not is_system(item.id):
        s.identity.privileges(catalog).check_owner(item)
    return item


def _find(s: EngineSession, kind: ast.ObjectKind, name: ast.Name, catalog: CatalogState) -> Item:
    if kind is ast.ObjectKind.DATABASE:
        return catalog.database(name.item)
    if kind is ast.ObjectKind.SCHEMA:
        return catalog.resolve_schema(name.parts, s.database)
    named = kind.value.lower() if kind in _NO_RELATIONS else "relation"
    item = s.resolver(catalog).any_item(name, named)
    if statement_kind(item) is not kind:
        raise wrong_kind(item, kind, name, catalog)
    return item


_NO_RELATIONS = (ast.ObjectKind.CONNECTION, ast.ObjectKind.SECRET, ast.ObjectKind.SINK)


def wrong_kind(
    item: SchemaItem, kind: ast.ObjectKind, name: ast.Name, catalog: CatalogState
) -> WrongObjectType:
    hint = f"Use the statement for a {statement_kind(item).value.lower()}."
    if isinstance(item, SourceProgress) or (isinstance(item, SourceTable) and item.subsource):
        owner = catalog.relation(item.owner or item.source)
        shown = f'{statement_kind(owner).value.lower()} "{owner.name}"'
        hint = f"It belongs to {shown}, and is dropped with it alone. Else use the statement for a "
        hint += "source."
    return WrongObjectType(
        f'"{item.name}" is not a {kind.value.lower()}',
        hint=hint,
        position=name.offset + 1,
    )


def find_or_none(
    s: EngineSession, kind: ast.ObjectKind, name: ast.Name, catalog: CatalogState, *, if_exists: bool
) -> tuple[Item | None, Notice | None]:
    try:
        return find(s, kind, name, catalog), None
    except UndefinedObject as e:
        if not if_exists:
            if kind not in (ast.ObjectKind.DATABASE, ast.ObjectKind.SCHEMA):
                e.primary = e.primary.replace("relation ", f"{kind.value.lower()} ", 1)
            raise
        return None, Notice(f'{kind.value.lower()} "{name.item}" does not exist, skipping')


def renamed(columns: Sequence[Column], names: Sequence[ast.Ident]) -> list[Column]:
    """The columns of the query in storage form; the first ones take the names of the statement."""
    if len(names) > len(columns):
        raise WrongObjectType("too many column names were specified", sqlstate="42601")
    out = [replace(c, name=n.value) for c, n in zip(columns, names, strict=False)]
    return [replace(c, type=plain(c.type)) for c in (*out, *columns[len(names) :])]
