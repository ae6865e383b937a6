"""SHOW: variables and objects, answered from the catalog and the session. Only conditions of SHOW ... WHERE
that cannot be evaluated here run on Spark."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from sqlglot import exp

from tidemill.catalog.connections import connection_of
from tidemill.catalog.items import (
    Connection,
    Schema,
    Sink,
    Source,
    SourceProgress,
    SourceTable,
    Subscription,
    Table,
)
from tidemill.catalog.state import CatalogState
from tidemill.engine.api import Outcome, Rows
from tidemill.engine.read.local_rows import stream, text_columns, text_rows, text_table
from tidemill.engine.read.over_rows import over_rows
from tidemill.engine.read.reader import Reader
from tidemill.engine.read.select import table_tree
from tidemill.engine.relations.kinds import object_type, source_type
from tidemill.engine.relations.pg.facts import PgFacts
from tidemill.engine.relations.pg.functions import catalog_functions
from tidemill.engine.relations.resolver import find_system_relation
from tidemill.engine.relations.system import SYSTEM_RELATIONS
from tidemill.engine.session.catalog_view import CatalogView
from tidemill.engine.session.plan import Action, Plan
from tidemill.engine.session.system_parameters import SystemParameters
from tidemill.engine.session.variables import REPORTED_NAMES, SYSTEM_PARAMETERS, Variables
from tidemill.errors import Unsupported, WrongObjectType
from tidemill.sql import ast
from tidemill.sql.bind import BoundQuery, Relation, SessionInfo, bind_query
from tidemill.sql.local import LocalQuery, NotLocal, compile_query
from tidemill.types.model import BOOL, INT4, TEXT, Column, RelationDesc, type_name

Rowset = list[tuple[object, ...]]
_Listing = Callable[[CatalogView, ast.ShowObjects], Rowset]


def plan_show_variable(
    variables: Variables, parameters: SystemParameters, statement: ast.ShowVariable
) -> Plan:
    if statement.name is None:
        columns = text_columns("name", "setting", "description")

        async def all_variables() -> Outcome:
            rows = [(v.name, value, v.description) for v, value in variables.all()]
            rows += [(p.name, parameters.get(p.name), p.description) for p in SYSTEM_PARAMETERS.values()]
            return text_rows([c.name for c in columns], rows)

        return Action(all_variables, columns)
    name = statement.name
    parameter = SYSTEM_PARAMETERS.get(name.lower())
    shown = parameter.name if parameter else variables.find(name).name
    columns = text_columns(REPORTED_NAMES.get(shown, shown))

    async def one() -> Outcome:
        value = parameters.get(shown) if parameter else variables.get(shown)
        return text_rows([columns[0].name], [(value,)])

    return Action(one, columns)


def plan_show_objects(view: CatalogView, reader: Reader, statement: ast.ShowObjects) -> Plan:
    columns, listed = _LISTINGS[statement.listing]
    rows = sorted(listed(view, statement), key=_order(statement.listing))
    if statement.like is not None:
        pattern = like_pattern(statement.like)
        rows = [r for r in rows if pattern.fullmatch(str(r[0]))]
    table = text_table(columns, rows)
    where = None if statement.where is None else _filter(view.info(), statement.listing, statement.where)

    async def act() -> Outcome:
        if where is None:
            shown = table
        elif isinstance(where, LocalQuery):
            shown = where.run(
                PgFacts(view.state, view.info()), lambda _: rows, (), reader.execution.interrupt.check
            )
        else:
            shown = await over_rows(reader, where, table)
        return Rows(columns, stream(shown), tag="SHOW", counted=False)

    return Action(act, columns)


_LISTED_ID = "show"


@dataclass(frozen=True, slots=True)
class _Listed:
    """The one relation that the condition of SHOW ... WHERE can name."""

    listing: ast.Listing

    def relation(self, parts: tuple[str, ...], position: int | None) -> Relation:
        columns = _LISTINGS[self.listing][0]
        if parts != (self.listing.value.lower(),):
            raise Unsupported(
                f"SHOW {self.listing.value} ... WHERE can only ask about the columns that it shows",
                hint=f"They are {', '.join(c.name for c in columns)}.",
                position=position,
            )
        return Relation(_LISTED_ID, parts, RelationDesc(columns), tuple(c.name for c in columns))


def _filter(info: SessionInfo, listing: ast.Listing, where: ast.Expr) -> LocalQuery | BoundQuery:
    """SELECT * FROM the listing WHERE the condition holds, in the listing's order; on Spark if necessary."""
    tree = exp.Select(
        expressions=[exp.Star()],
        from_=exp.From(this=table_tree(ast.Name((listing.value.lower(),)))),
        where=exp.Where(this=where.tree.copy()),
        order=exp.Order(expressions=[exp.Ordered(this=exp.column(_sort_column(listing), quoted=True))]),
    )
    names = _Listed(listing)
    try:
        return compile_query(tree, names, info, catalog_functions(), {_LISTED_ID: 0}, ())
    except NotLocal:
        return bind_query(tree, names, session=info)


def _sort_column(listing: ast.Listing) -> str:
    return "position" if listing is ast.Listing.COLUMNS else "name"


def _order(listing: ast.Listing) -> Callable[[tuple[object, ...]], tuple[object, ...]]:
    at = [c.name for c in _LISTINGS[listing][0]].index(_sort_column(listing))
    return lambda row: (row[at],)


def _schema(view: CatalogView, statement: ast.ShowObjects) -> Schema | None:
    """The schema of FROM or IN; by default the first of the search path."""
    if statement.within is not None:
        return view.state.resolve_schema(statement.within.parts, view.database)
    database = view.state.database(view.database)
    found = [s for n in view.variables.search_path() if (s := view.state.find_schema(database.id, n))]
    return found[0] if found else None


def _relations(view: CatalogView, statement: ast.ShowObjects) -> list[tuple[str, str]]:
    """(name, type) of the objects in the schema."""
    schema = _schema(view, statement)
    if schema is None:
        return []
    rows = [(i.name, object_type(i)) for i in view.state.schema_items(schema.id)]
    if schema.database is None:
        rows += [(r.name, "view") for r in SYSTEM_RELATIONS.values() if r.schema == schema.name]
    return rows


def _named(kind: str) -> _Listing:
    return lambda v, st: [(name,) for name, t in _relations(v, st) if t == kind]


def _objects(view: CatalogView, statement: ast.ShowObjects) -> Rowset:
    return [*_relations(view, statement)]


def _sources(view: CatalogView, statement: ast.ShowObjects) -> Rowset:
    schema = _schema(view, statement)
    found = [] if schema is None else view.state.relations(schema.id)
    return [(r.name, source_type(r), _connection_name(view.state, r)) for r in found if isinstance(r, Source)]


def _connection_name(catalog: CatalogState, source: Source) -> str | None:
    connection = connection_of(catalog, source)
    return None if connection is None else connection.name


def _sinks(view: CatalogView, statement: ast.ShowObjects) -> Rowset:
    schema = _schema(view, statement)
    found = [] if schema is None else view.state.schema_items(schema.id)
    return [(i.name, i.type, view.state.relation(i.relation).name) for i in found if isinstance(i, Sink)]


def _subscriptions(view: CatalogView, statement: ast.ShowObjects) -> Rowset:
    schema = _schema(view, statement)
    found = [] if schema is None else view.state.schema_items(schema.id)
    named = [i for i in found if isinstance(i, Subscription)]
    return [(i.name, None if i.relation is None else view.state.relation(i.relation).name) for i in named]


def _connections(view: CatalogView, statement: ast.ShowObjects) -> Rowset:
    schema = _schema(view, statement)
    found = [] if schema is None else view.state.schema_items(schema.id)
    return [(i.name, i.type) for i in found if isinstance(i, Connection)]


def _subsources(view: CatalogView, statement: ast.ShowObjects) -> Rowset:
    """The subsources of one source or of all sources in the schema, with the progress relations, which are
    created in the same way."""
    if statement.on is not None:
        source = view.resolver().item(statement.on)
        if not isinstance(source, Source):
            raise WrongObjectType(f'"{source.name}" is not a source', position=statement.on.offset + 1)
        found = [view.state.items[i] for i in view.state.dependants(source.id)]
    else:
        schema = _schema(view, statement)
        found = [] if schema is None else view.state.relations(schema.id)
    belonging = [r for r in found if isinstance(r, SourceTable | SourceProgress) and r.owner is not None]
    return [(r.name, source_type(r)) for r in belonging]


def _schemas(view: CatalogView, statement: ast.ShowObjects) -> Rowset:
    name = statement.within.item if statement.within else view.database
    return [(s.name,) for s in view.state.schemas(view.state.database(name).id)]


def _databases(view: CatalogView, statement: ast.ShowObjects) -> Rowset:
    del statement
    return [(d.name,) for d in view.state.databases()]


def _columns(view: CatalogView, statement: ast.ShowObjects) -> Rowset:
    if statement.within is None:
        raise Unsupported("SHOW COLUMNS needs FROM and a relation")
    system = find_system_relation(statement.within.parts, view.variables.search_path())
    if system is not None:
        desc, defaults = system.desc, (None,) * len(system.desc.columns)
    else:
        resolver = view.resolver()
        item = resolver.item(statement.within)
        desc = resolver.desc(item, statement.within.offset + 1)
        defaults = item.defaults if isinstance(item, Table) else (None,) * len(desc.columns)
    return [
        (c.name, n, c.nullable, type_name(c.type), default)
        for n, (c, default) in enumerate(zip(desc.columns, defaults, strict=True), 1)
    ]


_NAME, _TYPE = Column("name", TEXT), Column("type", TEXT)
# The columns and rows of each listing.
_LISTINGS: dict[ast.Listing, tuple[tuple[Column, ...], _Listing]] = {
    ast.Listing.TABLES: ((_NAME,), _named("table")),
    ast.Listing.VIEWS: ((_NAME,), _named("view")),
    ast.Listing.MATERIALIZED_VIEWS: ((_NAME,), _named("materialized-view")),
    ast.Listing.SCHEMAS: ((_NAME,), _schemas),
    ast.Listing.DATABASES: ((_NAME,), _databases),
    ast.Listing.OBJECTS: ((_NAME, _TYPE), _objects),
    ast.Listing.SOURCES: ((_NAME, _TYPE, Column("connection", TEXT)), _sources),
    ast.Listing.SUBSOURCES: ((_NAME, _TYPE), _subsources),
    ast.Listing.SINKS: ((_NAME, _TYPE, Column("relation", TEXT)), _sinks),
    ast.Listing.SUBSCRIPTIONS: ((_NAME, Column("relation", TEXT)), _subscriptions),
    ast.Listing.CONNECTIONS: ((_NAME, _TYPE), _connections),
    ast.Listing.SECRETS: ((_NAME,), _named("secret")),
    ast.Listing.ROLES: ((_NAME,), lambda v, st: [(role.name,) for role in v.state.roles()]),
    ast.Listing.COLUMNS: (
        (_NAME, Column("position", INT4), Column("nullable", BOOL), _TYPE, Column("default", TEXT)),
        _columns,
    ),
}


def like_pattern(pattern: str) -> re.Pattern[str]:
    """A LIKE pattern as a regular expression: % any text, _ one character, backslash escapes."""
    out: list[str] = []
    chars = iter(pattern)
    for c in chars:
        if c == "\\":
            out.append(re.escape(next(chars, "\\")))
        elif c == "%":
            out.append(".*")
        elif c == "_":
            out.append(".")
        else:
            out.append(re.escape(c))
    return re.compile("".join(out), re.DOTALL)
