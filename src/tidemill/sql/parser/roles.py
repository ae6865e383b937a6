"""Roles, GRANT and REVOKE, owners. An error never shows the text of a password."""

from __future__ import annotations

from collections.abc import Callable

from tidemill.errors import SyntaxError_
from tidemill.sql.ast import (
    AlterOwner,
    AlterRole,
    CreateRole,
    DropOwned,
    DropRole,
    GrantKind,
    GrantPrivileges,
    GrantRoles,
    Name,
    ObjectKind,
    Password,
    ReassignOwned,
    RoleName,
    RoleOptions,
    Statement,
)
from tidemill.sql.parser.cursor import TokenCursor
from tidemill.sql.tokens import TokenKind

_KEYWORDS = ("public", "current_user", "current_role", "session_user")
_FLAGS = ("login", "superuser", "inherit", "createdb", "createrole")
# Attributes of PostgreSQL's roles that Tidemill does not have.
_REFUSED = (
    "replication",
    "noreplication",
    "bypassrls",
    "nobypassrls",
    "connection",
    "valid",
    "admin",
    "sysid",
)
_PRIVILEGES = ("select", "insert", "update", "delete", "usage", "create", "connect")
# Objects on which PostgreSQL has privileges and Tidemill has none.
_UNGRANTABLE = frozenset(
    {"domain", "foreign", "function", "language", "large", "parameter", "procedure", "routine", "sequence"}
    | {"tablespace", "type"}
)
# Of those that are known by two words, both.
_LONGER = {"valid": "valid until", "connection": "connection limit"}
_REFUSED_PRIVILEGES = (
    *("truncate", "references", "trigger", "temporary", "temp", "execute", "set", "alter"),
    *("maintain", "createrole", "createdb", "createcluster"),
)


# -- roles


def create_role(cursor: TokenCursor, *, login: bool = False) -> Statement:
    """After CREATE ROLE, or CREATE USER."""
    name = cursor.ident()
    options = _options(cursor, "CREATE ROLE")
    if login and options.login is None:
        options = RoleOptions(
            True,
            options.superuser,
            options.inherit,
            options.createdb,
            options.createrole,
            options.password,
        )
    return CreateRole(name, options)


def create_user(cursor: TokenCursor) -> Statement:
    return create_role(cursor, login=True)


def alter_role(cursor: TokenCursor) -> Statement:
    """After ALTER ROLE or ALTER USER."""
    if cursor.peek_words("all"):
        raise cursor.unsupported("ALTER ROLE ALL")
    name = role_name(cursor)
    if cursor.peek_any("rename", "set", "reset", "in"):
        raise cursor.unsupported(f"ALTER ROLE ... {cursor.token.value.upper()}")
    if cursor.at_end:
        raise cursor.error()
    return AlterRole(name, _options(cursor, "ALTER ROLE"))


def drop_role(cursor: TokenCursor) -> Statement:
    """After DROP ROLE or DROP USER."""
    if_exists = cursor.accept_if_exists()
    names = [cursor.ident()]
    while cursor.accept_symbol(","):
        names.append(cursor.ident())
    return DropRole(tuple(names), if_exists)


def _options(cursor: TokenCursor, statement: str) -> RoleOptions:
    cursor.accept("with")
    flags: dict[str, bool] = {}
    password: Password | None = None
    while not cursor.at_end:
        offset = cursor.offset
        flag = next((f for f in _FLAGS if cursor.peek_any(f, f"no{f}")), None)
        if flag is not None:
            if flag in flags:
                raise _twice(offset)
            flags[flag] = cursor.accept(flag) or not cursor.accept(f"no{flag}")
        elif cursor.peek_any("password", "encrypted"):
            if password is not None:
                raise _twice(offset)
            password = _password(cursor, statement)
        elif cursor.peek_any(*_REFUSED):
            word = cursor.token.value
            raise cursor.unsupported(f"{statement} ... {_LONGER.get(word, word).upper()}")
        elif cursor.peek_words("in", "role") or cursor.peek_any("role", "user"):
            raise cursor.unsupported(f"{statement} ... IN ROLE", hint="Use GRANT role TO member.")
        else:
            raise cursor.error()
    return RoleOptions(**flags, password=password)


def _twice(offset: int) -> SyntaxError_:
    return SyntaxError_("conflicting or redundant options", position=offset + 1)


def _password(cursor: TokenCursor, statement: str) -> Password:
    """Any other token in place of a string may be the password: the error does not quote it."""
    cursor.accept("encrypted")
    position = cursor.offset + 1
    if cursor.accept("password"):
        if cursor.accept("null"):
            return Password(None)
        position = cursor.offset + 1
        if cursor.token.kind is TokenKind.STRING:
            return Password(cursor.string())
    raise SyntaxError_(
        f"syntax error in {statement}", hint=f"Write {statement} name PASSWORD '...'.", position=position
    )


def role_name(cursor: TokenCursor) -> RoleName:
    offset = cursor.offset
    if cursor.peek_any(*_KEYWORDS):
        return RoleName(cursor.advance().value, True, offset)
    return RoleName(cursor.ident().value, False, offset)


def _role_names(cursor: TokenCursor) -> tuple[RoleName, ...]:
    found: list[RoleName] = []
    while True:
        cursor.accept("group")
        found.append(role_name(cursor))
        if not cursor.accept_symbol(","):
            return tuple(found)


# -- privileges


def grant(cursor: TokenCursor) -> Statement:
    """After GRANT."""
    return _grant(cursor, revoke=False)


def revoke(cursor: TokenCursor) -> Statement:
    """After REVOKE."""
    if cursor.peek_words("grant", "option") or cursor.peek_words("admin", "option"):
        raise cursor.unsupported(f"REVOKE {cursor.token.value.upper()} OPTION")
    return _grant(cursor, revoke=True)


def _grant(cursor: TokenCursor, *, revoke: bool) -> Statement:
    verb = "REVOKE" if revoke else "GRANT"
    to = cursor.find_word("on", "from" if revoke else "to")
    if to is None:
        cursor.rewind(cursor.stop)
        raise cursor.error()
    if to.value != "on":
        roles = _role_names(cursor)
        _expect_to(cursor, revoke)
        members = _role_names(cursor)
        _tail(cursor, verb, revoke)
        return GrantRoles(roles, members, revoke)
    privileges = _privileges(cursor, verb)
    cursor.expect("on")
    kind = _kind(cursor)
    parts = _PARTS[kind]
    names = [cursor.name(parts)]
    while cursor.accept_symbol(","):
        names.append(cursor.name(parts))
    _expect_to(cursor, revoke)
    roles = _role_names(cursor)
    _tail(cursor, verb, revoke)
    return GrantPrivileges(privileges, kind, tuple(names), roles, revoke)


_NAMED_KINDS = (
    GrantKind.SCHEMA,
    GrantKind.DATABASE,
    GrantKind.CONNECTION,
    GrantKind.SECRET,
    GrantKind.SUBSCRIPTION,
)
_PARTS = {
    GrantKind.TABLE: 3,
    GrantKind.SCHEMA: 2,
    GrantKind.DATABASE: 1,
    GrantKind.CONNECTION: 3,
    GrantKind.SECRET: 3,
    GrantKind.SUBSCRIPTION: 3,
    GrantKind.ALL_TABLES: 2,
}


def _expect_to(cursor: TokenCursor, revoke: bool) -> None:
    cursor.expect("from" if revoke else "to")


def _tail(cursor: TokenCursor, verb: str, revoke: bool) -> None:
    if cursor.peek_any("with"):
        raise cursor.unsupported(f"{verb} ... WITH", hint="Only owners (and superusers) grant.")
    if cursor.peek_any("granted"):
        raise cursor.unsupported(f"{verb} ... GRANTED BY")
    if revoke and not cursor.accept("cascade"):
        # Privileges cannot be passed on, so both mean the same.
        cursor.accept("restrict")


def _privileges(cursor: TokenCursor, verb: str) -> tuple[str, ...]:
    if cursor.accept("all"):
        cursor.accept("privileges")
        return ()
    found: list[str] = []
    while True:
        if cursor.peek_any(*_REFUSED_PRIVILEGES):
            hint = "GRANT DELETE lets TRUNCATE too." if cursor.token.value == "truncate" else None
            raise cursor.unsupported(f"{verb} {cursor.token.value.upper()}", hint=hint)
        if not cursor.peek_any(*_PRIVILEGES):
            raise cursor.error()
        name = cursor.advance().value.upper()
        if cursor.peek_symbol("("):
            raise cursor.unsupported(f"{verb} on columns", hint="Make a view of the columns.")
        found.append("USAGE" if name == "CONNECT" else name)
        if not cursor.accept_symbol(","):
            return tuple(dict.fromkeys(found))


def _kind(cursor: TokenCursor) -> GrantKind:
    if cursor.accept("all"):
        for word in ("tables", "views", "sources"):
            if cursor.accept(word):
                cursor.expect("in", "schema")
                return GrantKind.ALL_TABLES
        raise cursor.unsupported(f"ON ALL {cursor.token.value.upper()}")
    for kind in _NAMED_KINDS:
        if cursor.peek_any(kind.value.lower()) and cursor.following.kind in (
            TokenKind.WORD,
            TokenKind.QUOTED,
        ):
            cursor.expect(kind.value.lower())
            return kind
    named = cursor.following.kind in (TokenKind.WORD, TokenKind.QUOTED) and cursor.following.key not in (
        "to",
        "from",
    )
    if cursor.peek_any(*_UNGRANTABLE) and named:
        raise cursor.unsupported(f"ON {cursor.token.value.upper()}")
    for words in (("table",), ("view",), ("source",), ("materialized", "view")):
        if cursor.accept(*words):
            break
    return GrantKind.TABLE


# -- owners


def alter_owner(cursor: TokenCursor, kind: ObjectKind, name: Name, if_exists: bool) -> Statement | None:
    """After ALTER kind name: OWNER TO role, or None."""
    if not cursor.accept("owner"):
        return None
    cursor.expect("to")
    return AlterOwner(kind, name, role_name(cursor), if_exists)


def reassign(cursor: TokenCursor) -> Statement:
    """After REASSIGN."""
    cursor.expect("owned", "by")
    roles = _role_names(cursor)
    cursor.expect("to")
    return ReassignOwned(roles, role_name(cursor))


def drop_owned(cursor: TokenCursor) -> Statement:
    """After DROP OWNED."""
    cursor.expect("by")
    roles = _role_names(cursor)
    cascade = cursor.accept("cascade")
    if not cascade:
        cursor.accept("restrict")
    return DropOwned(roles, cascade)


CREATE: dict[str, Callable[[TokenCursor], Statement]] = {"role": create_role, "user": create_user}
ALTER: dict[str, Callable[[TokenCursor], Statement]] = {"role": alter_role, "user": alter_role}
DROP: dict[str, Callable[[TokenCursor], Statement]] = {
    "role": drop_role,
    "user": drop_role,
    "owned": drop_owned,
}


def set_role(cursor: TokenCursor) -> tuple[str, ...]:
    """After SET ROLE: the value of the variable `role`; `none` for the login role."""
    if cursor.accept("none"):
        return ("none",)
    if cursor.token.kind is TokenKind.STRING:
        return (cursor.string(),)
    return (cursor.ident().value,)
