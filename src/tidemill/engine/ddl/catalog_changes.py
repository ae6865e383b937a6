"""Name lookup and catalog transactions, shared by all DDL statements.

DDL commits immediately. In a transaction block it is allowed only before the block has read or written,
with a warning that it cannot be rolled back. Earlier writes of an implicit transaction are committed
first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from tidemill.catalog import ops
from tidemill.catalog.connections import expect_type
from tidemill.catalog.items import (
    RELATIONS,
    Connection,
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
from tidemill.catalog.store import Catalog
from tidemill.engine.api import Complete, Outcome
from tidemill.engine.audit.log import AuditLog
from tidemill.engine.relations.kinds import statement_kind
from tidemill.engine.session.catalog_view import CatalogView
from tidemill.engine.session.execution import StatementExecution
from tidemill.engine.session.identity import Identity
from tidemill.engine.session.plan import Action
from tidemill.engine.session.transaction import Mode
from tidemill.engine.session.transactions import Transactions
from tidemill.errors import InvalidTransactionState, Notice, UndefinedObject, WrongObjectType
from tidemill.sql import ast
from tidemill.types.model import Column, plain


@dataclass(frozen=True, slots=True)
class CatalogChanges:
    """Changes of the catalog by one session's statements. `identity` owns what they create."""

    execution: StatementExecution
    transactions: Transactions
    identity: Identity
    catalog: Catalog
    audit: AuditLog

    async def transact(
        self,
        verb: str,
        changes: Sequence[ops.Op],
        contents: pa.Table | None = None,
        reads: Mapping[str, int] | None = None,
    ) -> None:
        """Applies the changes, after the session's transaction is prepared. `contents` and `reads` as for
        `Catalog.transact`."""
        await self.by_itself(verb)
        change = partial(self.transact_now, verb, changes, contents=contents, reads=reads)
        await self.execution.blocking(change)

    def transact_now(
        self,
        verb: str,
        changes: Sequence[ops.Op],
        *,
        contents: pa.Table | None = None,
        reads: Mapping[str, int] | None = None,
        unaltered: Table | None = None,
        before: Callable[[CatalogState, CatalogState], None] | None = None,
    ) -> None:
        """`Catalog.transact` as the session's role, which owns new items. The audit log records the change.
        Blocks."""
        states: list[tuple[CatalogState, CatalogState]] = []

        def look(old: CatalogState, new: CatalogState) -> None:
            states.append((old, new))
            if before is not None:
                before(old, new)

        self.catalog.transact(
            changes,
            contents=contents,
            reads=reads,
            unaltered=unaltered,
            before=look,
            owner=self.identity.acting_role(self.catalog.state).id,
        )
        self.audit.changed(self.identity, verb, *states[-1])

    async def by_itself(self, verb: str) -> None:
        """Prepares an immediate commit: nothing in a transaction block, else the commit of earlier writes."""
        transaction = self.transactions.current
        if transaction.read_only:
            raise InvalidTransactionState(
                f"cannot execute {verb} in a read-only transaction", sqlstate="25006"
            )
        if transaction.explicit:
            if transaction.mode is not Mode.OPEN:
                raise InvalidTransactionState(
                    f"{verb} cannot run in a transaction block that has already read or written",
                    hint="COMMIT first, and run it by itself.",
                    sqlstate="25001",
                )
            self.execution.notice(Notice(f"{verb} takes effect at once and cannot be rolled back", "WARNING"))
        elif transaction.writes:
            await self.transactions.commits.commit(transaction)
            transaction.writes.clear()
            transaction.lasting.append(f"what was written before {verb}")
        self.transactions.at_once = verb

    def change(self, verb: str, changes: Sequence[ops.Op], notices: Sequence[Notice] = ()) -> Action:
        async def act() -> Outcome:
            for notice in notices:
                self.execution.notice(notice)
            if changes:
                await self.transact(verb, changes)
            return Complete(verb)

        return Action(act)

    def skip(self, verb: str, text: str, sqlstate: str) -> Action:
        return self.change(verb, (), [Notice(text, sqlstate=sqlstate)])


def existing_at(view: CatalogView, name: ast.Name) -> tuple[Schema, str, Relation | None]:
    """The location of a new relation of that name, and the existing relation there, if any."""
    schema, item, existing = item_at(view, name)
    if existing is not None and not isinstance(existing, RELATIONS):
        raise ops.already_exists(existing)
    return schema, item, existing


def item_at(view: CatalogView, name: ast.Name) -> tuple[Schema, str, SchemaItem | None]:
    schema, item = view.state.resolve_new(name.parts, view.database, view.variables.search_path())
    mine = view.privileges()
    mine.check_place(schema)
    mine.check(schema, "CREATE")
    return schema, item, view.state.find(schema.id, item)


def find(view: CatalogView, kind: ast.ObjectKind, name: ast.Name) -> Item:
    """The item that the statement names. Raises WrongObjectType for another kind, PermissionDenied for an
    item of another owner."""
    item = _find(view, kind, name)
    # The change itself refuses system objects, with its own error.
    if not is_system(item.id):
        view.privileges().check_owner(item)
    return item


def _find(view: CatalogView, kind: ast.ObjectKind, name: ast.Name) -> Item:
    if kind is ast.ObjectKind.DATABASE:
        return view.state.database(name.item)
    if kind is ast.ObjectKind.SCHEMA:
        return view.state.resolve_schema(name.parts, view.database)
    named = kind.value.lower() if kind in _NO_RELATIONS else "relation"
    item = view.resolver().any_item(name, named)
    if statement_kind(item) is not kind:
        raise wrong_kind(item, kind, name, view.state)
    return item


_NO_RELATIONS = (
    ast.ObjectKind.CONNECTION,
    ast.ObjectKind.SECRET,
    ast.ObjectKind.SINK,
    ast.ObjectKind.SUBSCRIPTION,
)


def find_connection(view: CatalogView, name: ast.Name, type_: str) -> Connection:
    """A connection of that type, which the session may use."""
    item = view.resolver().any_item(name, "connection")
    if not isinstance(item, Connection):
        raise WrongObjectType(f'"{item.name}" is not a connection', position=name.offset + 1)
    view.privileges().check(item, "USAGE")
    return expect_type(item, type_, name.offset + 1)


def wrong_kind(
    item: SchemaItem, kind: ast.ObjectKind, name: ast.Name, catalog: CatalogState
) -> WrongObjectType:
    hint = f"Use the statement for a {statement_kind(item).value.lower()}."
    if isinstance(item, SourceProgress) or (isinstance(item, SourceTable) and item.subsource):
        owner = catalog.relation(item.owner or item.source)
        shown = f'{statement_kind(owner).value.lower()} "{owner.name}"'
        way = f": ALTER SOURCE {ast.Ident(owner.name)} DROP SUBSOURCE {ast.Ident(item.name)} drops it"
        if isinstance(item, SourceProgress) or item.dead_letters_of is not None:
            way = ", and is dropped with it alone"
        hint = f"It belongs to {shown}{way}. Else use the statement for a source."
    return WrongObjectType(
        f'"{item.name}" is not a {kind.value.lower()}',
        hint=hint,
        position=name.offset + 1,
    )


def find_or_none(
    view: CatalogView, kind: ast.ObjectKind, name: ast.Name, *, if_exists: bool
) -> tuple[Item | None, Notice | None]:
    try:
        return find(view, kind, name), None
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
