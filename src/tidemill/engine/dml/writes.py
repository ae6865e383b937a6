"""INSERT, UPDATE, DELETE, TRUNCATE: from rows to the updates of one transaction.

A statement that reads what it writes (UPDATE, DELETE, INSERT ... SELECT) reads at the transaction's time. It
commits only if nothing that it read has changed since. If it is alone in its transaction, it commits here and
runs again after a conflict, so that its client never sees one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlglot import exp

from tidemill.catalog.items import Table, View
from tidemill.catalog.state import CatalogState
from tidemill.engine.api import Complete, Outcome, Rows
from tidemill.engine.ddl.defaults import default_trees
from tidemill.engine.dml.returning import Returning, plan_returning
from tidemill.engine.dml.table_writer import Columns, TableWriter
from tidemill.engine.dml.writer import StatementWriter
from tidemill.engine.read import reading
from tidemill.engine.read.local_rows import stream
from tidemill.engine.read.select import table_tree
from tidemill.engine.session.catalog_view import CatalogView
from tidemill.engine.session.plan import Action, Plan, Value
from tidemill.errors import SyntaxError_, UndefinedObject, Unsupported, WrongObjectType
from tidemill.sql import ast
from tidemill.sql.bind import BoundQuery, bind_insert_source, bind_update
from tidemill.types.model import Column, SqlType

# From the columns of a statement's source to the rows to retract and the rows to insert; at least one of
# them.
Split = Callable[[Columns], tuple[Columns | None, Columns | None]]


@dataclass(slots=True)
class WritePlan:
    """A statement that writes to one table."""

    writer: StatementWriter
    verb: str
    target: TableWriter
    catalog: CatalogState
    source: BoundQuery
    split: Split
    returning: Returning | None
    # The shards that the outcome depends on.
    reads: list[str]

    @property
    def param_types(self) -> tuple[SqlType, ...]:
        return self.source.param_types if self.returning is None else self.returning.param_types

    @property
    def columns(self) -> tuple[Column, ...] | None:
        return None if self.returning is None else self.returning.columns

    async def run(self, params: Sequence[Value]) -> Outcome:
        transactions, locks = self.writer.transactions, self.writer.locks
        transactions.current.will_write(self.verb)
        if transactions.alone and self.reads:
            return await self._run_alone(params)
        shard = self.target.table.shard
        if locks.claimed(shard):
            # The commit would wait as well, but could not be cancelled there.
            await self.writer.reader.execution.interrupt.guard(locks.wait([shard]))
        return await self._run_once(params)

    async def _run_alone(self, params: Sequence[Value]) -> Outcome:
        """Runs with its own commit, and repeats until no other write has intervened."""

        async def attempt(claimed: bool) -> Outcome:
            outcome = await self._run_once(params)
            transaction = self.writer.transactions.current
            try:
                if transaction.writes:
                    await self.writer.transactions.commits.commit(transaction, claimed=claimed)
            finally:
                transaction.forget_writes()
            return outcome

        return await self.writer.in_turn(self.reads, attempt)

    async def _run_once(self, params: Sequence[Value]) -> Outcome:
        limit = self.writer.limit
        own = params[: len(self.source.param_types)]
        rows = await reading.collect(self.writer.reader, self.catalog, self.source, limit, own)
        transaction = self.writer.transactions.current
        transaction.reads.update(self.reads)
        target, count = self.target, rows.num_rows
        old, new = self.split(rows.columns)
        made = [] if old is None else [target.updates(old, count, -1)]
        if new is not None:
            made.append(target.updates(new, count, 1))
            target.check_not_null(made[-1])
        for updates in made:
            transaction.add_write(target.table, updates, limit)
        tag = f"INSERT 0 {count}" if self.verb == "INSERT" else f"{self.verb} {count}"
        if self.returning is None:
            return Complete(tag)
        result = await self.returning.rows(target.rows(made[-1]), params)
        return Rows(self.returning.columns, stream(result), tag=tag, counted=False)


def _write_plan(
    view: CatalogView,
    writer: StatementWriter,
    statement: ast.Insert | ast.Update | ast.Delete,
    table: Table,
    source: BoundQuery,
    split: Split,
) -> WritePlan:
    verb = type(statement).__name__.upper()
    # The rows that it retracts must exist.
    own = set[str]() if isinstance(statement, ast.Insert) else {table.shard}
    reads = sorted(own | {t.shard for t in reading.tables_under(view.state, source)})
    returning = plan_returning(view, writer.reader, table, statement, source.param_types)
    target = TableWriter(table, view.state)
    return WritePlan(writer, verb, target, view.state, source, split, returning, reads)


# -- INSERT ----------------------------------------------------------------------------------------


def plan_insert(
    view: CatalogView, writer: StatementWriter, statement: ast.Insert, types: Sequence[SqlType | None]
) -> Plan:
    table = view.resolver().table(statement.table, "insert into")
    target_columns(table, statement.columns)
    if isinstance(statement.source, ast.Query) and statement.source.as_of is not None:
        raise Unsupported(
            "INSERT ... SELECT cannot have AS OF", hint="It reads at the time of its transaction."
        )
    source = bind_insert_source(
        statement.source,
        table.desc.columns,
        view.resolver(),
        session=view.info(),
        defaults=default_trees(table),
        columns=[c.value for c in statement.columns] or None,
        param_types=types,
    )

    return _write_plan(view, writer, statement, table, source, lambda rows: (None, rows))


def target_columns(table: Table, names: Sequence[ast.Ident]) -> list[int]:
    """The positions of the named columns; all columns if none are named."""
    if not names:
        return list(range(len(table.desc.columns)))
    at: list[int] = []
    for name in names:
        index = column_index(table, name)
        if index in at:
            raise SyntaxError_(
                f'column "{name.value}" specified more than once', sqlstate="42701", position=name.offset + 1
            )
        at.append(index)
    return at


def column_index(table: Table, name: ast.Ident) -> int:
    for n, column in enumerate(table.desc.columns):
        if column.name == name.value:
            return n
    raise UndefinedObject(
        f'column "{name.value}" of relation "{table.name}" does not exist',
        sqlstate="42703",
        position=name.offset + 1,
    )


# -- UPDATE, DELETE, TRUNCATE ----------------------------------------------------------------------


def plan_update(
    view: CatalogView, writer: StatementWriter, statement: ast.Update, types: Sequence[SqlType | None]
) -> Plan:
    table = view.resolver().table(statement.table, "update")
    if statement.from_ is not None:
        _refuse_returning("UPDATE ... FROM", statement.returning)
    assigned: dict[str, exp.Expr | None] = {}
    for assignment in statement.assignments:
        name, *others = assignment.columns
        if others:
            raise Unsupported(
                "assigning several columns from a subquery is not supported",
                hint="Assign each column from a subquery of its own.",
                position=name.offset + 1,
            )
        column_index(table, name)
        if name.value in assigned:
            raise SyntaxError_(
                f'multiple assignments to same column "{name.value}"', position=name.offset + 1
            )
        assigned[name.value] = _placed(assignment.value) if isinstance(assignment.value, ast.Expr) else None
    source = bind_update(
        table_tree(statement.table, statement.alias),
        assigned,
        None if statement.where is None else statement.where.tree,
        view.resolver(),
        session=view.info(),
        others=None if statement.from_ is None else statement.from_.tree,
        defaults=default_trees(table),
        param_types=types,
    )
    width = len(table.desc.columns)
    return _write_plan(view, writer, statement, table, source, lambda rows: (rows[:width], rows[width:]))


def _placed(value: ast.Expr) -> exp.Expr:
    """The tree of the value, which has a position: the parser keeps positions of names and calls, not of
    literals."""
    if isinstance(value.tree, exp.Literal):
        value.tree.meta.setdefault("start", value.offset)
    return value.tree


def plan_delete(
    view: CatalogView, writer: StatementWriter, statement: ast.Delete, types: Sequence[SqlType | None]
) -> Plan:
    if statement.using is not None:
        _refuse_returning("DELETE ... USING", statement.returning)
    return _removal(view, writer, statement, types)


def _refuse_returning(what: str, items: Sequence[ast.Expr]) -> None:
    """RETURNING of such a statement may name the joined columns (and * includes them), which are not kept."""
    if items:
        raise Unsupported(f"RETURNING of {what} is not supported", position=items[0].offset + 1)


def _removal(
    view: CatalogView, writer: StatementWriter, statement: ast.Delete, types: Sequence[SqlType | None]
) -> WritePlan:
    table = view.resolver().table(statement.table, "delete from")
    # Removing all rows reveals nothing of their contents.
    blind = statement.where is None and statement.using is None and not statement.returning
    source = bind_update(
        table_tree(statement.table, statement.alias),
        {},
        None if statement.where is None else statement.where.tree,
        view.resolver(unread=table.id if blind else None),
        session=view.info(),
        others=None if statement.using is None else statement.using.tree,
        param_types=types,
    )
    return _write_plan(view, writer, statement, table, source, lambda rows: (rows, None))


def plan_truncate(view: CatalogView, writer: StatementWriter, statement: ast.Truncate) -> Plan:
    for name in statement.tables:
        if isinstance(view.resolver().item(name), View):
            raise WrongObjectType(f'"{name.item}" is not a table', position=name.offset + 1)
    removals = [_removal(view, writer, ast.Delete(name), ()) for name in statement.tables]

    async def act() -> Outcome:
        writer.transactions.alone = writer.transactions.alone and len(removals) == 1
        for removal in removals:
            await removal.run(())
        return Complete("TRUNCATE TABLE")

    return Action(act)
