"""`\\d` and related commands: list and describe objects of the catalogs."""

from __future__ import annotations

import re

from tidemill.cli.shell import catalogs
from tidemill.cli.shell.commands.registry import CommandCall, Handler, command
from tidemill.cli.shell.display_settings import ColumnLook, Row
from tidemill.cli.shell.patterns import parse
from tidemill.cli.shell.shell import Next, Shell
from tidemill.cli.shell.variables import identifier

_RELATIONS = re.compile(r"d([tvmisE]*)([S+]*)")
_OTHERS = re.compile(r"(dn|df|du|dg|dp|dconfig|l|list|z|sv)([S+]*)")
_ROLE_WORDS = ("Superuser", "No inheritance", "Create role", "Create DB", "Cannot login", "Replication")
_TEXT = 25


def handler_of(name: str) -> Handler | None:
    """The handler of a name with modifiers: + for more detail, S for system objects."""
    if _RELATIONS.fullmatch(name):
        return relations
    found = _OTHERS.fullmatch(name)
    return None if found is None else _HANDLERS[found[1]]


def is_tidemill(shell: Shell) -> bool:
    return bool(shell.query(catalogs.IS_TIDEMILL).rows)


def _shown(call: CommandCall, sql: str, title: str) -> Next | None:
    table = call.shell.query(sql)
    call.shell.printer.table(table.columns, table.rows, title=title)
    return None


def relations(call: CommandCall) -> Next | None:
    found = _RELATIONS.fullmatch(call.name)
    assert found is not None
    letters, modifiers = found.groups()
    more, system = "+" in modifiers, "S" in modifiers
    shell, pattern = call.shell, parse(call.pattern)
    tidemill = is_tidemill(shell)
    if not letters and pattern.given:
        return _described(shell, call.pattern, more=more)
    if letters == "s" and tidemill:
        sql, title = catalogs.sources(pattern, more=more), "List of sources"
    else:
        sql = catalogs.relations(letters, pattern, system=system, more=more, tidemill=tidemill)
        title = "List of relations"
    table = shell.query(sql)
    if not table.rows and not shell.quiet:
        named = f' named "{call.pattern}"' if pattern.given else "s"
        shell.printer.say(f"Did not find any {title.removeprefix('List of ').removesuffix('s')}{named}.")
        return Next.FAILED if pattern.given else None
    shell.printer.table(table.columns, table.rows, title=title)
    return None


def _described(shell: Shell, text: str, *, more: bool) -> Next | None:
    found = shell.query(catalogs.found(parse(text), tidemill=is_tidemill(shell))).rows
    if not found:
        shell.printer.say(f'Did not find any relation named "{text}".')
        return Next.FAILED
    for oid, schema, name, kind, word in found:
        title = f'{(word or "Relation")[:1].upper()}{(word or "Relation")[1:]} "{schema}.{name}"'
        table = shell.query(catalogs.columns(str(oid), more=more))
        notes = _notes(shell, str(oid), str(kind), more=more)
        shell.printer.table(table.columns, table.rows, title=title, footer="\n".join(notes))
    return None


def _notes(shell: Shell, oid: str, kind: str, *, more: bool) -> list[str]:
    """The notes below the columns."""
    out: list[str] = []
    if kind in ("v", "m") and more:
        rows = shell.query(catalogs.definition(oid)).rows
        out += ["View definition:", *(rows[0][0] or "").rstrip().splitlines()] if rows else []
    if kind in ("v", "i", "I", "S"):
        return out
    indexes = shell.query(catalogs.indexes(oid)).rows
    if indexes:
        out += ["Indexes:", *(f"    {_index(row)}" for row in indexes)]
    titles = {"c": "Check constraints:", "f": "Foreign-key constraints:"}
    for sort, name, text in shell.query(catalogs.constraints(oid)).rows:
        if titles.get(str(sort), "") not in out:
            out.append(titles[str(sort)])
        out.append(f'    "{name}" {text}')
    return out


def _index(row: Row) -> str:
    name, primary, unique, definition = row
    what = "PRIMARY KEY, " if primary == "t" else "UNIQUE, " if unique == "t" else ""
    return f'"{name}" {what}{(definition or "").partition(" USING ")[2]}'


def schemas(call: CommandCall) -> Next | None:
    sql = catalogs.schemas(parse(call.pattern), system="S" in call.name, more="+" in call.name)
    return _shown(call, sql, "List of schemas")


def functions(call: CommandCall) -> Next | None:
    sql = catalogs.functions(parse(call.pattern), system="S" in call.name, more="+" in call.name)
    return _shown(call, sql, "List of functions")


def databases(call: CommandCall) -> Next | None:
    return _shown(call, catalogs.databases(parse(call.pattern), more="+" in call.name), "List of databases")


def privileges(call: CommandCall) -> Next | None:
    return _shown(call, catalogs.privileges(parse(call.pattern)), "Access privileges")


def settings(call: CommandCall) -> Next | None:
    return _shown(call, catalogs.settings(parse(call.pattern)), "List of configuration parameters")


def roles(call: CommandCall) -> Next | None:
    table = call.shell.query(catalogs.roles(parse(call.pattern), system="S" in call.name))
    rows: list[Row] = []
    for name, *flags, groups in table.rows:
        # Only these two are mentioned when they are off.
        told = [flag == ("f" if i in (1, 4) else "t") for i, flag in enumerate(flags)]
        words = ", ".join(word for word, tell in zip(_ROLE_WORDS, told, strict=True) if tell)
        rows.append((name, words, groups))
    columns = (
        ColumnLook("Role name", _TEXT),
        ColumnLook("Attributes", _TEXT),
        ColumnLook("Member of", _TEXT),
    )
    call.shell.printer.table(columns, rows, title="List of roles")
    return None


def view_text(call: CommandCall) -> Next | None:
    shell = call.shell
    found = shell.query(catalogs.found(parse(call.pattern), tidemill=False)).rows
    if not found or found[0][3] not in ("v", "m"):
        shell.printer.say(f'Did not find any view named "{call.pattern}".')
        return Next.FAILED
    oid, schema, name, kind, _ = found[0]
    text = shell.query(catalogs.definition(str(oid))).rows[0][0] or ""
    what = "MATERIALIZED VIEW" if kind == "m" else "OR REPLACE VIEW"
    shell.printer.target.write(
        f"CREATE {what} {identifier(schema or '')}.{identifier(name or '')} AS\n{text.rstrip()}\n"
    )
    return None


_HANDLERS: dict[str, Handler] = {
    "dn": schemas,
    "df": functions,
    "du": roles,
    "dg": roles,
    "dp": privileges,
    "z": privileges,
    "dconfig": settings,
    "l": databases,
    "list": databases,
    "sv": view_text,
}
for _name, _handler in {"d": relations, **_HANDLERS}.items():
    command(_name)(_handler)
