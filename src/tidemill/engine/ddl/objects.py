"""CREATE, ALTER and DROP of databases, schemas, tables and views. For sources, see `ddl.sources`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.catalog import ops
from tidemill.catalog.items import SCHEMA_ITEMS, Database, Item, Key, Table, View
from tidemill.catalog.privileges import PermissionDenied
from tidemill.catalog.state import CatalogState, id_order
from tidemill.engine.api import Complete, Outcome
from tidemill.engine.ddl.catalog_changes import CatalogChanges, existing_at, find_or_none, renamed
from tidemill.engine.ddl.defaults import default_text, default_value
from tidemill.engine.ddl.kept_query import kept_text
from tidemill.engine.dml.writer import StatementWriter
from tidemill.engine.read import reading
from tidemill.engine.read.reader import Reader
from tidemill.engine.session.catalog_view import CatalogView
from tidemill.engine.session.durations import history_ms
from tidemill.engine.session.plan import Action, ActionOf, Plan, Value
from tidemill.errors import (
    About,
    DuplicateObject,
    InvalidTransactionState,
    Notice,
    NotNullViolation,
    TidemillError,
    UndefinedObject,
    Unsupported,
    WrongObjectType,
)
from tidemill.sql import ast
from tidemill.sql.bind import BoundQuery, bind_query
from tidemill.types import parse_type
from tidemill.types.arrow import DIFF_COLUMN
from tidemill.types.model import TEXT, Column, Kind, RelationDesc, SqlType
from tidemill.types.names import physical_names

# The number of dropped objects that DROP ... CASCADE reports to a client, as in PostgreSQL.
MAX_CASCADE_LINES = 100


async def _alter_as_read(
    ddl: CatalogChanges,
    writer: StatementWriter,
    planned: Table,
    work_out: Callable[[Table, int], tuple[ops.Op, pa.Table | None]],
) -> Outcome:
    """Applies a table change that depends on its rows, in one commit. `work_out` reads the table at a time,
    off the event loop, and returns the change and its updates. It runs again if the table was written or
    altered meanwhile."""
    await ddl.by_itself("ALTER TABLE")

    async def attempt(_: bool) -> Outcome:
        # First the table, then the time, so that the values of its last ALTER are visible at this time.
        table = ddl.catalog.state.get(planned.id, Table)
        ts = await writer.reader.now()
        op, contents = await ddl.execution.blocking(work_out, table, ts)
        reads = {table.shard: ts}
        change = partial(ddl.transact_now, contents=contents, reads=reads, unaltered=table)
        await ddl.execution.blocking(change, "ALTER TABLE", [op])
        return Complete("ALTER TABLE")

    return await writer.in_turn([planned.shard], attempt)


# -- databases, schemas ----------------------------------------------------------------------------


def plan_create_database(view: CatalogView, ddl: CatalogChanges, statement: ast.CreateDatabase) -> Plan:
    name = statement.name.value
    mine = view.privileges()
    if not (mine.superuser or mine.role.createdb):
        raise PermissionDenied("permission denied to create database")
    if statement.if_not_exists and any(d.name == name for d in view.state.databases()):
        return ddl.skip("CREATE DATABASE", f'database "{name}" already exists, skipping', "42P04")
    return ddl.change("CREATE DATABASE", [ops.CreateDatabaseOp(name)])


def plan_create_schema(view: CatalogView, ddl: CatalogChanges, statement: ast.CreateSchema) -> Plan:
    *qualifier, name = statement.name.parts
    if len(qualifier) > 1:
        raise UndefinedObject(f'improper schema name "{statement.name}"', sqlstate="42602")
    database = view.state.database(qualifier[0] if qualifier else view.database)
    view.privileges().check(database, "CREATE")
    if statement.if_not_exists and view.state.find_schema(database.id, name) is not None:
        return ddl.skip("CREATE SCHEMA", f'schema "{name}" already exists, skipping', "42P06")
    return ddl.change("CREATE SCHEMA", [ops.CreateSchemaOp(database.id, name)])


# -- tables and views ------------------------------------------------------------------------------


def plan_create_table(view: CatalogView, ddl: CatalogChanges, statement: ast.CreateTable) -> Plan:
    schema, name, existing = existing_at(view, statement.name)
    if existing is not None and statement.if_not_exists:
        return ddl.skip("CREATE TABLE", f'relation "{name}" already exists, skipping', "42P07")
    if not statement.columns:
        raise Unsupported("a table without columns is not supported", hint="Give it one.")
    keys = _keys(statement)
    primary = {c for key in keys if key.primary for c in key.columns}
    columns: list[Column] = []
    defaults: list[str | None] = []
    for definition in statement.columns:
        nullable = not (definition.not_null or definition.name.value in primary)
        column = _column(definition, nullable=nullable)
        columns.append(column)
        defaults.append(
            None if definition.default is None else default_text(view.info(), definition.default, column)
        )
    notices = [Notice("PRIMARY KEY and UNIQUE are recorded, not enforced")] if keys else []
    op = ops.CreateTableOp(
        schema.id,
        name,
        RelationDesc(tuple(columns)),
        tuple(defaults),
        keys,
        history_ms(statement.retain_history),
    )
    return ddl.change("CREATE TABLE", [op], notices)


def _column(definition: ast.ColumnDef, *, nullable: bool) -> Column:
    try:
        t = parse_type(definition.type)
    except TidemillError as e:
        e.position = definition.type_offset + 1
        raise
    if t.kind is Kind.UNKNOWN:
        raise TidemillError(f'column "{definition.name.value}" has pseudo-type unknown', sqlstate="42P16")
    return Column(definition.name.value, t, nullable)


def _keys(statement: ast.CreateTable) -> tuple[Key, ...]:
    names = {column.name.value for column in statement.columns}
    keys: list[Key] = []
    for column in statement.columns:
        if column.primary_key or column.unique:
            keys.append(Key((column.name.value,), primary=column.primary_key))
    for constraint in statement.constraints:
        for column in constraint.columns:
            if column.value not in names:
                raise UndefinedObject(
                    f'column "{column.value}" named in key does not exist',
                    sqlstate="42703",
                    position=column.offset + 1,
                )
        primary = constraint.kind is ast.ConstraintKind.PRIMARY_KEY
        keys.append(Key(tuple(c.value for c in constraint.columns), primary=primary))
    if sum(key.primary for key in keys) > 1:
        raise DuplicateObject(
            f'multiple primary keys for table "{statement.name.item}" are not allowed', sqlstate="42P16"
        )
    return tuple(keys)


def plan_create_table_as(
    view: CatalogView,
    ddl: CatalogChanges,
    writer: StatementWriter,
    statement: ast.CreateTableAs,
    types: Sequence[SqlType | None],
) -> Plan:
    schema, name, existing = existing_at(view, statement.name)
    if existing is not None and statement.if_not_exists:
        return ddl.skip("CREATE TABLE AS", f'relation "{name}" already exists, skipping', "42P07")
    bound = bind_query(statement.query.tree, view.resolver(), session=view.info(), param_types=types)
    columns = renamed(bound.columns, statement.columns)
    # The columns of a query are nullable, even if those of its inputs are not, as in PostgreSQL.
    desc = RelationDesc(
        tuple(Column(c.name, TEXT if c.type.kind is Kind.UNKNOWN else c.type) for c in columns)
    )
    op = ops.CreateTableOp(schema.id, name, desc, retain_history_ms=history_ms(statement.retain_history))

    async def act(params: Sequence[Value]) -> Outcome:
        if not statement.with_data:
            await ddl.transact("CREATE TABLE AS", [op])
            return Complete("CREATE TABLE AS")
        transaction = writer.transactions.current
        shards = {t.shard for t in reading.tables_under(view.state, bound)}

        async def attempt(_: bool) -> Outcome:
            # The rows first: the table appears with them or not at all.
            rows = await _rows_for_new_table(view, writer, bound, desc, params)
            read_ts = transaction.read_ts
            reads = {} if read_ts is None else dict.fromkeys(shards, read_ts)
            if not transaction.explicit:
                transaction.read_ts = None  # of the next try, if there must be one
            await ddl.transact("CREATE TABLE AS", [op], contents=rows, reads=reads)
            return Complete(f"SELECT {rows.num_rows}")

        return await (attempt(False) if transaction.explicit else writer.in_turn(shards, attempt))

    return ActionOf(act, bound.param_types)


async def _rows_for_new_table(
    view: CatalogView, writer: StatementWriter, bound: BoundQuery, desc: RelationDesc, params: Sequence[Value]
) -> pa.Table:
    rows = await reading.collect(writer.reader, view.state, bound, writer.limit, params)
    rows = rows.rename_columns(physical_names(desc))
    return rows.append_column(DIFF_COLUMN, pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows))


def plan_create_view(view: CatalogView, ddl: CatalogChanges, statement: ast.CreateView) -> Plan:
    schema, name, existing = existing_at(view, statement.name)
    if existing is not None and statement.if_not_exists:
        return ddl.skip("CREATE VIEW", f'relation "{name}" already exists, skipping', "42P07")
    if existing is not None and statement.or_replace:
        if not isinstance(existing, View):
            raise WrongObjectType(f'"{name}" is not a view', position=statement.name.offset + 1)
        view.privileges().check_owner(existing)
    if statement.query.as_of is not None:
        raise Unsupported("a view cannot have AS OF", hint="Give AS OF in the query that reads the view.")
    resolver = view.resolver()
    bound = bind_query(statement.query.tree, resolver, session=view.info())
    if bound.param_types:
        raise UndefinedObject("there is no parameter $1", sqlstate="42P02")
    op = ops.CreateViewOp(
        schema.id,
        name,
        kept_text(
            statement.query,
            bound.columns,
            lambda tree: bind_query(tree, view.resolver(), session=view.info()),
        ),
        RelationDesc(tuple(renamed(bound.columns, statement.columns))),
        references=resolver.references(),
        replace=statement.or_replace,
    )
    return ddl.change("CREATE VIEW", [op])


# -- dropping, renaming ----------------------------------------------------------------------------


def plan_drop(view: CatalogView, ddl: CatalogChanges, statement: ast.Drop) -> Plan:
    changes: list[ops.Op] = []
    notices: list[Notice] = []
    gone: set[str] = set()
    named: set[str] = set()
    for name in statement.names:
        item, notice = find_or_none(view, statement.kind, name, if_exists=statement.if_exists)
        if notice is not None:
            notices.append(notice)
        if item is None or item.id in gone:
            continue
        if isinstance(item, Database) and item.name == view.database:
            raise InvalidTransactionState("cannot drop the currently open database", sqlstate="55006")
        changes.append(ops.DropOp(item.id, statement.cascade))
        named.add(item.id)
        # With CASCADE an earlier name may take a later one with it.
        gone |= {i.id for i in view.state.drop_order(item.id) if statement.cascade or _goes_with(i, item)}
    if statement.cascade:
        notices += _cascading(view.state, gone - named)
    return ddl.change(f"DROP {statement.kind.value}", changes, notices)


def _cascading(catalog: CatalogState, ids: Iterable[str]) -> list[Notice]:
    """The dependent items that are dropped too, as PostgreSQL lists them; without items that belong to
    another item."""
    items = [
        i
        for i in (catalog.items[i] for i in ids)
        if not (isinstance(i, SCHEMA_ITEMS) and i.owner is not None)
    ]
    lines = [f"drop cascades to {catalog.describe(i)}" for i in sorted(items, key=lambda i: id_order(i.id))]
    if len(lines) <= 1:
        return [Notice(line) for line in lines]
    shown = lines[:MAX_CASCADE_LINES]
    if len(lines) > len(shown):
        shown.append(f"and {len(lines) - len(shown)} other objects")
    return [Notice(f"drop cascades to {len(lines)} other objects", detail="\n".join(shown))]


def _goes_with(item: Item, dropped: Item) -> bool:
    return item.id == dropped.id or (isinstance(item, SCHEMA_ITEMS) and item.owner == dropped.id)


def plan_rename(view: CatalogView, ddl: CatalogChanges, statement: ast.Rename) -> Plan:
    item, notice = find_or_none(view, statement.kind, statement.name, if_exists=statement.if_exists)
    verb = f"ALTER {statement.kind.value}"
    if item is None:
        return ddl.change(verb, (), [notice] if notice else [])
    return ddl.change(verb, [ops.RenameOp(item.id, statement.new_name.value)])


# -- ALTER TABLE -----------------------------------------------------------------------------------


def plan_alter_table(
    view: CatalogView, ddl: CatalogChanges, writer: StatementWriter, statement: ast.AlterTable
) -> Plan:
    item, notice = find_or_none(view, ast.ObjectKind.TABLE, statement.name, if_exists=statement.if_exists)
    if item is None:
        return ddl.change("ALTER TABLE", (), [notice] if notice else [])
    if not isinstance(item, Table):
        raise WrongObjectType(
            f'cannot alter table "{item.name}"',
            detail="It is fed by a source: its columns and its history are as the source has them.",
            hint="ALTER SOURCE changes how long history is kept.",
            position=statement.name.offset + 1,
        )
    table = item
    action = statement.action
    if isinstance(action, ast.AddColumn):
        return _plan_add_column(view, ddl, writer, table, action)
    if isinstance(action, ast.SetNotNull) and action.not_null:
        return _plan_set_not_null(ddl, writer, table, _find_column(table, action.column))
    return ddl.change("ALTER TABLE", [_alter_op(view, table, action)])


def _alter_op(view: CatalogView, table: Table, action: ast.TableAction) -> ops.Op:
    match action:
        case ast.SetDefault():
            column = _find_column(table, action.column)
            text = None if action.default is None else default_text(view.info(), action.default, column)
            return ops.SetDefaultOp(table.id, column.name, text)
        case ast.SetNotNull():
            return ops.SetNotNullOp(table.id, _find_column(table, action.column).name, action.not_null)
        case ast.SetRetainHistory():
            return ops.SetRetainHistoryOp(table.id, history_ms(action.duration))
        case _:
            raise Unsupported(
                "columns cannot be renamed",
                detail="A column's name is part of the history that is kept.",
                hint="Make a view that names it as you like.",
            )


def _find_column(table: Table, name: ast.Ident) -> Column:
    for column in table.desc.columns:
        if column.name == name.value:
            return column
    raise UndefinedObject(
        f'column "{name.value}" of relation "{table.name}" does not exist',
        sqlstate="42703",
        position=name.offset + 1,
    )


def _plan_add_column(
    view: CatalogView, ddl: CatalogChanges, writer: StatementWriter, table: Table, action: ast.AddColumn
) -> Plan:
    definition = action.column
    if definition.primary_key or definition.unique:
        raise Unsupported("ADD COLUMN cannot declare a key", hint="Declare keys when the table is created.")
    if action.if_not_exists and definition.name.value in table.desc.names:
        text = f'column "{definition.name.value}" of relation "{table.name}" already exists, skipping'
        return ddl.skip("ALTER TABLE", text, "42701")
    column = _column(definition, nullable=not definition.not_null)
    default = None if definition.default is None else default_text(view.info(), definition.default, column)
    op = ops.AddColumnOp(table.id, column, default)
    if default is None and column.nullable:
        return ddl.change("ALTER TABLE", [op])
    limit = writer.limit

    def work_out(table: Table, ts: int) -> tuple[ops.Op, pa.Table | None]:
        rows = _read(writer.reader, table, ts, physical_names(table.desc))
        value = default_value(view.info(), column, default, rows.num_rows)
        if value.null_count and not column.nullable:
            raise NotNullViolation(
                f'column "{column.name}" of relation "{table.name}" contains null values',
                hint="Give the column a DEFAULT.",
                about=_about(ddl.catalog.state, table, column.name),
            )
        if value.null_count == rows.num_rows:
            return op, None
        return op, _given(rows, physical_names(RelationDesc((*table.desc.columns, column)))[-1], value, limit)

    async def act() -> Outcome:
        return await _alter_as_read(ddl, writer, table, work_out)

    return Action(act)


def _given(rows: pa.Table, name: str, value: pa.Array, limit: int) -> pa.Table:
    """The updates that set a new column of `rows` (with `mz_diff` last) from NULL to a value."""
    at = rows.num_columns - 1
    new = rows.add_column(at, name, value)
    old = rows.add_column(at, name, pa.nulls(rows.num_rows, value.type))
    retracted = pc.call_function("negate", [rows.column(DIFF_COLUMN)])
    updates = pa.concat_tables([old.set_column(at + 1, new.schema.field(at + 1), retracted), new])
    if updates.nbytes > limit:
        raise Unsupported(
            "the table is too large to be given a default",
            detail=f"It takes {updates.nbytes} bytes, max_transaction_size is {limit}.",
            hint="Add the column without one, set its value with UPDATEs of a part of the rows each, "
            "and then its default.",
            sqlstate="54000",
        )
    return updates


def _read(reader: Reader, table: Table, ts: int, columns: Sequence[str]) -> pa.Table:
    """Those columns and `mz_diff`."""
    with reader.runtime.collections.snapshot(table, ts) as snapshot:
        return snapshot.read(columns).select([*columns, DIFF_COLUMN])


def _about(catalog: CatalogState, table: Table, column: str) -> About:
    return About(catalog.full_name(table)[-2], table.name, column)


def _plan_set_not_null(ddl: CatalogChanges, writer: StatementWriter, table: Table, column: Column) -> Plan:
    op = ops.SetNotNullOp(table.id, column.name, True)

    async def act() -> Outcome:
        def work_out(table: Table, ts: int) -> tuple[ops.Op, None]:
            name = physical_names(table.desc)[table.desc.names.index(column.name)]
            if _read(writer.reader, table, ts, [name]).column(0).null_count:
                raise NotNullViolation(
                    f'column "{column.name}" of relation "{table.name}" contains null values',
                    about=_about(ddl.catalog.state, table, column.name),
                )
            return op, None

        return await _alter_as_read(ddl, writer, table, work_out)

    return Action(act)
