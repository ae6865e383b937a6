"""CREATE SOURCE, CREATE TABLE ... FROM SOURCE, ALTER SOURCE.

The catalog change creates the shards and the items. The ingestion service follows the catalog
(`Catalog.on_change`), and finds new sources there after a crash.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from tidemill.catalog import source_ops
from tidemill.catalog.items import Schema, Source, SourceProgress, SourceTable
from tidemill.engine.api import Complete, Outcome
from tidemill.engine.ddl.catalog_changes import (
    CatalogChanges,
    existing_at,
    find_connection,
    find_or_none,
    renamed,
)
from tidemill.engine.ddl.external import External
from tidemill.engine.ddl.upstreams import (
    TABLES,
    DescribeContext,
    Described,
    DescribedOutput,
    DescribedTable,
    describe,
)
from tidemill.engine.ddl.upstreams.described import refuse_choice
from tidemill.engine.ddl.upstreams.envelopes import ORDER_BY_PARAMETER
from tidemill.engine.session.catalog_view import CatalogView
from tidemill.engine.session.durations import history_ms, interval_ms
from tidemill.engine.session.execution import StatementExecution
from tidemill.engine.session.plan import Action, Plan
from tidemill.errors import (
    DuplicateObject,
    Notice,
    SyntaxError_,
    TidemillError,
    UndefinedObject,
    Unsupported,
    WrongObjectType,
)
from tidemill.reclock.boundaries import DEFAULT_INTERVAL_MS
from tidemill.sources.contract import OutputDefinition
from tidemill.sources.definition import open_source
from tidemill.sources.kafka.dead_letters import DESC
from tidemill.sources.offsets import Offsets
from tidemill.sql import ast
from tidemill.sql.parser.envelopes.materialize import Materialize
from tidemill.sql.render import to_sql
from tidemill.types.model import RelationDesc

# The statement for another output waits until the source has read up to now. A source that keeps up needs a
# tick or two. It gives up if the source reads nothing for so long, and looks this often.
BOUND_SECONDS = 60.0
BOUND_LOOK_SECONDS = 2.0

# -- CREATE SOURCE ---------------------------------------------------------------------------------


def plan_create_source(
    view: CatalogView, ddl: CatalogChanges, external: External, statement: ast.CreateSource
) -> Plan:
    schema, name, existing = existing_at(view, statement.name)
    if existing is not None and statement.if_not_exists:
        return ddl.skip("CREATE SOURCE", f'relation "{name}" already exists, skipping', "42P07")
    if existing is not None:
        raise DuplicateObject(f'relation "{name}" already exists', sqlstate="42P07")
    progress = None if statement.progress is None else beside(view, schema, statement.progress)
    history = history_ms(statement.retain_history)
    interval = DEFAULT_INTERVAL_MS if statement.interval is None else interval_ms(statement.interval)

    _check_timeline(statement)

    def work_out() -> tuple[source_ops.CreateSourceOp, Sequence[Notice]]:
        described = describe(statement, context(view, external))
        own = described.own
        op = source_ops.CreateSourceOp(
            schema.id,
            name,
            described.type,
            json.dumps(described.definition, sort_keys=True, separators=(",", ":")),
            to_sql(replace(statement, if_not_exists=False, cluster=None, validate=True)),
            _own_desc(statement, own),
            None if own is None else described.envelope or own.envelope,
            described.gauge.remap_desc,
            described.gauge.progress_desc,
            interval,
            progress,
            _subsources(view, statement, described, schema),
            history,
            described.connections,
            statement.timeline,
            _dead_letters(view, statement, described, schema),
            described.transactions,
        )
        return op, described.notices

    async def act() -> Outcome:
        op, notices = await ddl.execution.interrupt.guard(ddl.execution.blocking(work_out))
        await ddl.transact("CREATE SOURCE", [op])
        for notice in notices:
            ddl.execution.notice(notice)
        if op.desc is None and not op.subsources:
            ddl.execution.notice(
                Notice(
                    f'source "{name}" has no tables yet',
                    hint=f"Make them with CREATE TABLE ... FROM SOURCE {ast.Ident(name)} (REFERENCE ...).",
                )
            )
        return Complete("CREATE SOURCE")

    return Action(act)


def _check_timeline(statement: ast.CreateSource) -> None:
    envelope = statement.messages.envelope
    if statement.timeline is None:
        return
    if not statement.timeline.strip():
        raise SyntaxError_("a timeline needs a name", position=statement.name.offset + 1)
    if not isinstance(envelope, Materialize):
        raise Unsupported(
            "WITH (TIMELINE ...) needs ENVELOPE MATERIALIZE",
            detail="Only the updates of a CDCv2 stream have times that could be kept.",
            position=statement.name.offset + 1,
        )
    if envelope.components is not None:
        raise Unsupported(
            "WITH (TIMELINE ...) is not possible where times are products",
            detail="A relation's times are numbers.",
            position=envelope.offset + 1,
        )


def context(view: CatalogView, external: External) -> DescribeContext:
    order_by = view.parameters.get(ORDER_BY_PARAMETER) == "on"
    return DescribeContext(
        view.state,
        external.secrets,
        partial(find_connection, view),
        partial(find_source, view),
        external.now(),
        order_by,
        external.files_root,
    )


def find_source(view: CatalogView, name: ast.Name) -> Source:
    source = view.resolver().item(name)
    if not isinstance(source, Source):
        raise WrongObjectType(f'"{source.name}" is not a source', position=name.offset + 1)
    view.privileges().check(source, "SELECT")
    return source


def _own_desc(statement: ast.CreateSource, output: OutputDefinition | None) -> RelationDesc | None:
    if output is None:
        if statement.columns:
            raise SyntaxError_(
                "columns can be named only where the source is a relation itself",
                hint="Name the columns of a table with CREATE TABLE t (...) FROM SOURCE.",
                position=statement.columns[0].offset + 1,
            )
        return None
    return RelationDesc(tuple(renamed(output.desc.columns, statement.columns)), output.desc.hidden)


def _subsources(
    view: CatalogView,
    statement: ast.CreateSource,
    described: Described,
    schema: Schema,
) -> tuple[source_ops.NewSubsource, ...]:
    if described.tables is not None:
        return tuple(subsource(view, schema, table) for table in described.tables)
    if statement.tables is None:
        return ()
    if statement.tables.schemas is not None:
        raise Unsupported(
            f"FOR SCHEMAS is not possible: the {described.label} has no schemas",
            hint="Use FOR ALL TABLES or FOR TABLES (...).",
            position=statement.tables.schemas[0].offset + 1,
        )
    if described.own is not None:
        raise SyntaxError_(
            f"FOR TABLES is not possible: the {described.label} gives one relation, which is the source",
            position=statement.name.offset + 1,
        )
    if statement.tables.tables is None:
        chosen = [(output, output.name) for output in described.outputs]
    else:
        chosen = [
            (
                _output(described.outputs, asked.output, f"the {described.label}"),
                asked.output.item if asked.alias is None else beside(view, schema, asked.alias),
            )
            for asked in statement.tables.tables
        ]
    names = [output.name for output, _ in chosen]
    twice = next((n for n in names if names.count(n) > 1), None)
    if twice is not None:
        raise DuplicateObject(f'"{twice}" is named more than once in FOR TABLES', sqlstate="42712")
    return tuple(source_ops.NewSubsource(n, o.name, o.desc, o.envelope) for o, n in chosen)


def subsource(view: CatalogView, schema: Schema, table: DescribedTable) -> source_ops.NewSubsource:
    return source_ops.NewSubsource(
        beside(view, schema, table.name),
        table.output.name,
        RelationDesc(tuple(renamed(table.output.desc.columns, ())), table.output.desc.hidden),
        table.output.envelope,
        table.spec,
        to_sql(table.statement),
    )


def _dead_letters(
    view: CatalogView,
    statement: ast.CreateSource,
    described: Described,
    schema: Schema,
) -> source_ops.NewDeadLetters | None:
    output, said = described.dead_letters, statement.messages.on_error
    if output is None or said is None:
        return None
    name = None if said.into is None else beside(view, schema, said.into)
    return source_ops.NewDeadLetters(output.name, output.desc, name)


def _output(outputs: Sequence[OutputDefinition], name: ast.Name, label: str) -> OutputDefinition:
    for output in outputs:
        if output.name == name.item:
            return output
    raise UndefinedObject(
        f'{label} has no table "{name.item}"',
        hint=f"It has {', '.join(o.name for o in outputs)}.",
        sqlstate="42P01",
        position=name.offset + 1,
    )


def beside(view: CatalogView, schema: Schema, name: ast.Name) -> str:
    """The name of an item that belongs to a source, in the schema of the source."""
    if len(name.parts) > 1 and view.state.resolve_schema(name.parts[:-1], view.database).id != schema.id:
        raise Unsupported(
            f'"{name.item}" must be in the schema of its source, "{schema.name}"', position=name.offset + 1
        )
    return name.item


# -- CREATE TABLE ... FROM SOURCE ------------------------------------------------------------------


def plan_create_table_from_source(
    view: CatalogView,
    ddl: CatalogChanges,
    external: External,
    statement: ast.CreateTableFromSource,
) -> Plan:
    schema, name, existing = existing_at(view, statement.name)
    if existing is not None and statement.if_not_exists:
        return ddl.skip("CREATE TABLE", f'relation "{name}" already exists, skipping', "42P07")
    source = find_source(view, statement.source)
    if source.desc is not None:
        raise WrongObjectType(
            f'source "{source.name}" gives one relation, which is the source itself',
            hint=f"Read from {source.name}, or make a view over it.",
            position=statement.source.offset + 1,
        )
    if source.type in TABLES:
        return _plan_described_table(view, ddl, external, schema, name, source, statement)
    if not statement.messages.silent:
        raise Unsupported(
            f'FORMAT, INCLUDE, ENVELOPE and ON ERROR are not supported for tables of source "{source.name}"',
            detail=f"It is a {source.type} source, whose tables have the rows that it makes.",
            hint="Leave them out.",
            position=statement.source.offset + 1,
        )
    refuse_choice(statement.choice, f"a {source.type} source")
    opened = open_source(json.loads(source.definition), external.files_root)
    try:
        output = _output(opened.outputs, statement.reference, f'source "{source.name}"')
    finally:
        opened.close()
    desc = RelationDesc(tuple(renamed(output.desc.columns, statement.columns)), output.desc.hidden)
    op = source_ops.CreateSourceTable(schema.id, name, source.id, output.name, desc, output.envelope)
    return ddl.change("CREATE TABLE", [op])


def _plan_described_table(
    view: CatalogView,
    ddl: CatalogChanges,
    external: External,
    schema: Schema,
    name: str,
    source: Source,
    statement: ast.CreateTableFromSource,
) -> Plan:
    def work_out() -> DescribedOutput:
        return TABLES[source.type](source, statement, context(view, external))

    async def act() -> Outcome:
        described = await ddl.execution.interrupt.guard(ddl.execution.blocking(work_out))
        await wait_bound(ddl.execution, external, source, described.at)
        columns, letters, said = described.output.desc, described.dead_letters, statement.messages.on_error
        into = None if said is None or said.into is None else beside(view, schema, said.into)
        op = source_ops.CreateSourceTable(
            schema.id,
            name,
            source.id,
            described.output.name,
            RelationDesc(tuple(renamed(columns.columns, statement.columns)), columns.hidden),
            described.envelope,
            described.spec,
            to_sql(replace(statement, if_not_exists=False)),
            described.connections,
            None if letters is None else source_ops.NewDeadLetters(letters["name"], DESC, into, letters),
        )
        await ddl.transact("CREATE TABLE", [op])
        return Complete("CREATE TABLE")

    return Action(act)


async def wait_bound(
    execution: StatementExecution, external: External, source: Source, at: Offsets | None
) -> None:
    """A new output begins with everything that is bound. Where the upstream was described at a position, that
    must be no less. A source that reads on (a long snapshot, a backlog) is waited for."""
    if at is None:
        return
    read, since = external.read(source), time.monotonic()
    look = partial(external.wait_bound, source, at, BOUND_LOOK_SECONDS)
    while not await execution.interrupt.guard(execution.blocking(look)):
        before, read = read, external.read(source)
        if read != before:
            since = time.monotonic()
        elif time.monotonic() - since >= BOUND_SECONDS:
            raise TidemillError(
                f'source "{source.name}" does not keep up with its upstream',
                detail=f"The table is described as of {at}, and the source has read nothing for "
                f"{BOUND_SECONDS:.0f} seconds.",
                hint="mz_internal.mz_source_statuses tells what it waits for.",
                sqlstate="57P03",
            )


# -- ALTER SOURCE ----------------------------------------------------------------------------------


def plan_alter_source(
    view: CatalogView, ddl: CatalogChanges, external: External, statement: ast.AlterSource
) -> Plan:
    kind = ast.ObjectKind.SOURCE
    item, notice = find_or_none(view, kind, statement.name, if_exists=statement.if_exists)
    if item is None:
        return ddl.change("ALTER SOURCE", (), [notice] if notice else [])
    if not isinstance(item, Source):
        belongs = isinstance(item, SourceTable | SourceProgress)
        owner = view.state.get(item.source, Source).name if belongs else item.name
        raise WrongObjectType(
            f'"{item.name}" has no options of its own',
            hint=f'Alter the source that it belongs to, "{owner}".',
            position=statement.name.offset + 1,
        )

    async def act() -> Outcome:
        changes = [_alter_op(item, action, external) for action in statement.actions]
        await ddl.transact("ALTER SOURCE", changes)
        return Complete("ALTER SOURCE")

    return Action(act)


def _alter_op(source: Source, action: ast.SourceAction, external: External) -> source_ops.AlterSourceOp:
    if isinstance(action, ast.GiveUpTransaction):
        return _give_up(source, action.transaction, external)
    if isinstance(action, ast.SetRetainHistory):
        return source_ops.SetSourceHistory(source.id, history_ms(action.duration))
    interval = DEFAULT_INTERVAL_MS if action.duration is None else interval_ms(action.duration)
    return source_ops.SetSourceInterval(source.id, interval)


def _give_up(source: Source, transaction: str, external: External) -> source_ops.GiveUpTransactionOp:
    """Only what is waited for: a mistyped id could be that of a later transaction."""
    source_ops.check_transaction_topic(source)
    waiting = external.waiting(source)
    if waiting is None or transaction != waiting:
        raise TidemillError(
            f'transaction "{transaction}" is not waited for',
            detail="No transaction is waited for." if waiting is None else f'It is "{waiting}" that is.',
            hint="mz_internal.mz_source_statuses tells in details what a source waits for.",
            sqlstate="55000",
        )
    return source_ops.GiveUpTransactionOp(source.id, transaction)
