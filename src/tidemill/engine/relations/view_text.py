"""The query of a view with current names.

A view keeps the text of its creation, and the objects that the names in it denoted then
(`catalog.items.Reference`). So neither a rename nor another search path changes its inputs, and `*` means the
columns of that time. Called by SHOW CREATE and by pg_get_viewdef and similar functions. Promises a text that
has the same meaning when it is run now, in a session that finds the relations under the names from `name_of`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sqlglot import exp

from tidemill.caches import cached
from tidemill.catalog.items import MaterializedView, Reference, Relation, Subscription, View
from tidemill.catalog.state import CatalogState
from tidemill.errors import Internal, TidemillError
from tidemill.sql import ast
from tidemill.sql.names import quote_ident
from tidemill.sql.parse import parse
from tidemill.sql.render import expression_sql

Parts = tuple[str, ...]
# The name as written; the name to write; the columns that `*` means if there are more today.
_Naming = tuple[Parts, Parts, Parts | None]

# The number of rendered texts in the cache. Clients read all views of a database after every change of one.
KEPT_TEXTS = 4096


def query_today(
    catalog: CatalogState, view: View | MaterializedView | Subscription, name_of: Callable[[Relation], Parts]
) -> str:
    """The query's text, unchanged if it still has its original meaning."""
    namings = tuple(_naming(catalog, r, name_of) for r in view.references)
    if all(written == now and columns is None for written, now, columns in namings):
        return view.sql
    try:
        return _rewritten(view.sql, namings)
    except TidemillError:
        # Written by a version whose stored text could not be parsed again: one view must not break the
        # catalogs.
        return view.sql


def _naming(catalog: CatalogState, r: Reference, name_of: Callable[[Relation], Parts]) -> _Naming:
    item = catalog.relation(r.id)
    names = () if item.desc is None else tuple(item.desc.names)
    cut = r.width is not None and r.width < len(names)
    return r.name, name_of(item), names[: r.width] if cut else None


@cached(KEPT_TEXTS)
def _rewritten(sql: str, namings: tuple[_Naming, ...]) -> str:
    (parsed,) = parse(sql)
    if not isinstance(parsed.statement, ast.Query):
        raise Internal("the text of a view is no query")
    tree = parsed.statement.tree.copy()
    by_name = {written: (now, columns) for written, now, columns in namings}
    for table in list(tree.find_all(exp.Table)):
        parts = _parts(table)
        if parts not in by_name or (len(parts) == 1 and _names_cte(table, parts[0])):
            continue
        _name_anew(table, parts, *by_name[parts])
    for column in tree.find_all(exp.Column):
        if column.args.get("db") is not None:
            _qualify_anew(column, by_name)
    return expression_sql(tree)


def _parts(table: exp.Table) -> Parts:
    if isinstance(table.this, exp.Func):
        return ()
    return tuple(p.name for p in (table.args.get("catalog"), table.args.get("db"), table.this) if p)


def _names_cte(table: exp.Table, name: str) -> bool:
    """Whether the name denotes a WITH item that is visible there."""
    below: exp.Expr = table
    node = table.parent
    cte: exp.Expr | None = None  # the item of the innermost WITH that contains the table
    while node is not None:
        if isinstance(node, exp.With):
            cte = below
        elif (with_ := node.args.get("with_")) is not None:
            seen: Sequence[exp.Expr] = with_.expressions
            if below is with_ and cte is not None:
                last = seen.index(cte) + (1 if with_.args.get("recursive") else 0)
                seen = seen[:last]
            if any(item.alias == name for item in seen):
                return True
        below, node = node, node.parent
    return False


def _name_anew(table: exp.Table, written: Parts, now: Parts, columns: Parts | None) -> None:
    alias = table.args.get("alias")
    called = bool(alias is not None and alias.name)
    keys = ("this", "db", "catalog")
    named: dict[str, exp.Expr] = dict(zip(keys, map(_ident, reversed(now)), strict=False))
    if columns is not None:
        inner = exp.Select(expressions=[exp.Column(this=_ident(c)) for c in columns])
        inner.set("from_", exp.From(this=exp.Table(**named)))
        if not called:
            alias = exp.TableAlias(this=_ident(written[-1]))
        table.replace(exp.Subquery(this=inner, **{**_rest(table), "alias": alias}))
        return
    for key in keys:
        table.set(key, named.get(key))
    if not called and now[-1] != written[-1]:
        listed = [] if alias is None else alias.args.get("columns")
        table.set("alias", exp.TableAlias(this=_ident(written[-1]), columns=listed))


def _qualify_anew(column: exp.Column, by_name: Mapping[Parts, tuple[Parts, Parts | None]]) -> None:
    """In `schema.table.column`, the schema's name may have changed; a table with an alias has none."""
    place = (column.args["db"].name, column.table)
    schema = next(
        (
            now[-2:-1]
            for written, (now, columns) in by_name.items()
            if written[-2:] == place and now[-1] == written[-1] and columns is None
        ),
        (),
    )
    column.set("catalog", None)
    column.set("db", _ident(schema[0]) if schema else None)


def _rest(table: exp.Table) -> dict[str, object]:
    """The rest of the FROM item: its joins, LATERAL."""
    return {k: v for k, v in table.args.items() if k not in ("this", "db", "catalog", "alias")}


def _ident(name: str) -> exp.Identifier:
    return exp.Identifier(this=name, quoted=quote_ident(name) != name)
