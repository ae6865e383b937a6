"""Statements that are known and not done: each refused by its own name, never half parsed.

`NOT_YET` gives way to files of their own as subscriptions arrive.
`NO_OPS` are accepted and do nothing, so that scripts written for the upstream product or for PostgreSQL
run.
"""

from __future__ import annotations

from tidemill.errors import SyntaxError_, TidemillError, Unsupported
from tidemill.sql.ast import NoOp, Statement
from tidemill.sql.names import words
from tidemill.sql.parser.cursor import Cursor
from tidemill.sql.tokens import Kind

# Objects of CREATE, DROP, ALTER (the words after them) that later work brings.
NOT_YET = (("subscription",),)
NO_OPS = {
    "index": "indexes are not needed: every relation is stored by columns with statistics; nothing was done",
    "cluster": "there is one cluster, the Spark master that the server was started with; nothing was done",
}
# Statements of PostgreSQL, by their first word, that there is nothing behind.
_REFUSED_WORDS = words(
    """
    analyze call checkpoint cluster do import listen load lock merge notify refresh reindex security
    vacuum
    """
)
_TWO_WORDS = frozenset({"refresh", "import", "security"})
_TEMPORARY = frozenset({"temp", "temporary", "local", "global", "unlogged"})


def refuse_object(cursor: Cursor, verb: str) -> TidemillError:
    """The error for CREATE, DROP or ALTER of what the cursor stands on."""
    for named in NOT_YET:
        if cursor.peek_words(*named):
            return Unsupported(
                f"{verb} {' '.join(named).upper()} is not supported yet", position=cursor.offset + 1
            )
    token = cursor.token
    if token.kind is not Kind.WORD:
        return cursor.error()
    if verb == "CREATE" and token.value in _TEMPORARY:
        return cursor.unsupported(
            f"CREATE {token.value.upper()}", hint="Use WITH for results that one statement needs."
        )
    if verb == "ALTER" and cursor.peek_words("default", "privileges"):
        now = "GRANT ... ON ALL TABLES IN SCHEMA is about those that are there."
        return cursor.unsupported("ALTER DEFAULT PRIVILEGES", hint=now)
    hint = "Use CREATE ROLE: a role with members is a group." if token.value == "group" else None
    return cursor.unsupported(f"{verb} {token.value.upper()}", hint=hint if verb == "CREATE" else None)


def no_op(cursor: Cursor, verb: str) -> Statement | None:
    """After CREATE, DROP or ALTER: an index or a cluster, or None. What follows is kept as text, not looked
    into."""
    probe = cursor.fork()
    if verb == "CREATE":
        probe.accept("unique")
        probe.accept("default")
    for word, notice in NO_OPS.items():
        if probe.accept(word):
            if probe.at_end:
                raise probe.error()
            text = cursor.rest()
            return NoOp(f"{verb} {word.upper()}", notice, f"{verb} {text}")
    return None


def unlisten(cursor: Cursor) -> Statement:
    """After UNLISTEN: nothing is listened to. Pools of connections send it when one comes back."""
    if not cursor.accept_symbol("*"):
        cursor.ident()
    return NoOp("UNLISTEN", None, "UNLISTEN *")


def refuse_statement(cursor: Cursor) -> TidemillError:
    """The error for a statement whose first word no parser is registered for."""
    token = cursor.token
    if token.kind is Kind.WORD:
        if token.value == "tail":
            return SyntaxError_("TAIL has been renamed to SUBSCRIBE", position=token.start + 1)
        if token.value in _REFUSED_WORDS:
            name = token.value.upper()
            if token.value in _TWO_WORDS and cursor.following.kind is Kind.WORD:
                name += f" {cursor.following.value.upper()}"
            return cursor.unsupported(name)
    return cursor.error()
