"""Statements about roles, privileges and owners back to SQL text: `render`'s part for them.

A password is written as it is, for the text is the statement; nobody shows or keeps it.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.sql import ast
from tidemill.sql.names import quote_literal


def _list(items: Iterable[object]) -> str:
    return ", ".join(map(str, items))


def _options(options: ast.RoleOptions) -> str:
    flags = {
        "LOGIN": options.login,
        "SUPERUSER": options.superuser,
        "INHERIT": options.inherit,
        "CREATEDB": options.createdb,
        "CREATEROLE": options.createrole,
    }
    said = [name if on else f"NO{name}" for name, on in flags.items() if on is not None]
    if options.password is not None:
        text = options.password.text
        said.append("PASSWORD NULL" if text is None else f"PASSWORD {quote_literal(text)}")
    return "".join(f" {s}" for s in said)


def role_sql(s: ast.Statement) -> str | None:
    """None where it is another kind of statement."""
    match s:
        case ast.CreateRole():
            return f"CREATE ROLE {s.name}{_options(s.options)}"
        case ast.AlterRole():
            return f"ALTER ROLE {s.name}{_options(s.options)}"
        case ast.DropRole():
            return f"DROP ROLE {'IF EXISTS ' if s.if_exists else ''}{_list(s.names)}"
        case ast.GrantPrivileges():
            head, to = ("REVOKE", "FROM") if s.revoke else ("GRANT", "TO")
            privileges = _list(s.privileges) or "ALL"
            return f"{head} {privileges} ON {s.kind.value} {_list(s.names)} {to} {_list(s.roles)}"
        case ast.GrantRoles():
            head, to = ("REVOKE", "FROM") if s.revoke else ("GRANT", "TO")
            return f"{head} {_list(s.roles)} {to} {_list(s.members)}"
        case ast.AlterOwner():
            return f"ALTER {s.kind.value} {'IF EXISTS ' if s.if_exists else ''}{s.name} OWNER TO {s.owner}"
        case ast.ReassignOwned():
            return f"REASSIGN OWNED BY {_list(s.roles)} TO {s.to}"
        case ast.DropOwned():
            return f"DROP OWNED BY {_list(s.roles)}{' CASCADE' if s.cascade else ''}"
        case _:
            return None
