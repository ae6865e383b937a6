"""Statements that are accepted and do nothing: indexes, clusters, maintenance, and some DROPs.

They exist so that scripts written for the upstream product or for PostgreSQL run.
"""

from __future__ import annotations

from tidemill.errors import UndefinedObject
from tidemill.sql.ast import Name, NoOp, ObjectKind, Statement
from tidemill.sql.parser.cursor import TokenCursor

_INDEX = "indexes are not needed: every relation is stored by columns with statistics; nothing was done"
_UNIQUE = "nothing was done: indexes are not needed, and that values are unique is not enforced"
_CLUSTER = "there is one cluster, the Spark master that the server was started with; nothing was done"
_VACUUM = "VACUUM is not needed: what was deleted goes by itself when its history ends; nothing was done"
_ANALYZE = "ANALYZE is not needed: every relation is stored with statistics; nothing was done"
_REFRESH = "materialized views are always up to date; nothing was done"
_CHECKPOINT = "every commit is durable before it is answered; nothing was done"

# Kinds of objects that never exist, for DROP ... IF EXISTS.
_NEVER_THERE = (
    *(
        ("aggregate",),
        ("collation",),
        ("domain",),
        ("event", "trigger"),
        ("extension",),
        ("foreign", "table"),
    ),
    *(("function",), ("policy",), ("procedure",), ("publication",), ("routine",), ("rule",), ("sequence",)),
    *(("server",), ("statistics",), ("trigger",), ("type",)),
)


def no_op(cursor: TokenCursor, verb: str) -> Statement | None:
    """After CREATE, DROP or ALTER: an index or a cluster, or None. Ignores the rest of the statement, except
    for the relation of an index.
    """
    probe = cursor.fork()
    unique = verb == "CREATE" and probe.accept("unique")
    if verb == "CREATE":
        probe.accept("default")
    for word, notice in (("index", _INDEX), ("cluster", _CLUSTER)):
        if probe.accept(word):
            if probe.at_end:
                raise probe.error()
            relations = _indexed(probe) if (verb, word) == ("CREATE", "index") else ()
            cursor.skip_rest()
            return NoOp(f"{verb} {word.upper()}", (_UNIQUE if unique else notice,), relations)
    return None


def _indexed(cursor: TokenCursor) -> tuple[Name, ...]:
    """The relation in CREATE INDEX ... [IN CLUSTER c] ON name ..."""
    cursor.rewind(cursor.find("on"))
    if not cursor.accept("on"):
        return ()
    cursor.accept("only")
    return (cursor.name(),)


def drop_absent(cursor: TokenCursor) -> Statement | None:
    """After DROP: IF EXISTS of a kind of object that never exists; otherwise None, without moving."""
    for kind in _NEVER_THERE:
        probe = cursor.fork()
        if not probe.accept(*kind) or not probe.accept_if_exists():
            continue
        called = " ".join(kind)
        notices: list[str] = []
        while True:
            notices.append(f'{called} "{probe.name().item}" does not exist, skipping')
            _options(probe)  # the arguments of a function
            if not probe.accept_symbol(","):
                break
        if probe.accept("on"):
            probe.name()
        if not probe.accept("cascade"):
            probe.accept("restrict")
        probe.expect_end()
        cursor.skip_rest()
        return NoOp(f"DROP {called.upper()}", tuple(notices))
    return None


def vacuum(cursor: TokenCursor) -> Statement:
    """After VACUUM."""
    _options(cursor, "full", "freeze", "verbose", "analyze", "analyse")
    return NoOp("VACUUM", (_VACUUM,), _relations(cursor))


def analyze(cursor: TokenCursor) -> Statement:
    """After ANALYZE."""
    _options(cursor, "verbose")
    return NoOp("ANALYZE", (_ANALYZE,), _relations(cursor))


def reindex(cursor: TokenCursor) -> Statement:
    """After REINDEX."""
    _options(cursor)
    table = cursor.accept("table")
    if not table and not any(map(cursor.accept, ("index", "schema", "database", "system"))):
        raise cursor.error()
    cursor.accept("concurrently")
    names = () if cursor.at_end else (cursor.name(),)
    return NoOp("REINDEX", (_INDEX,), names if table else ())


def checkpoint(cursor: TokenCursor) -> Statement:
    """After CHECKPOINT."""
    _options(cursor)
    return NoOp("CHECKPOINT", (_CHECKPOINT,))


def refresh(cursor: TokenCursor) -> Statement:
    """After REFRESH."""
    cursor.expect("materialized", "view")
    cursor.accept("concurrently")
    name = cursor.name()
    if cursor.peek_words("with", "no", "data"):
        raise cursor.unsupported("REFRESH MATERIALIZED VIEW ... WITH NO DATA")
    cursor.accept("with", "data")
    return NoOp("REFRESH MATERIALIZED VIEW", (_REFRESH,), (name,), ObjectKind.MATERIALIZED_VIEW)


def unlisten(cursor: TokenCursor) -> Statement:
    """After UNLISTEN: no session listens. Connection pools send it when a connection is returned."""
    if not cursor.accept_symbol("*"):
        cursor.ident()
    return NoOp("UNLISTEN", ())


def set_constraints(cursor: TokenCursor) -> Statement:
    """After SET CONSTRAINTS: no constraint is deferrable."""
    all_ = cursor.accept("all")
    names = () if all_ else cursor.names()
    if not cursor.accept("deferred"):
        cursor.expect("immediate")
    if names:
        raise UndefinedObject(
            f'constraint "{names[0]}" does not exist', sqlstate="42704", position=names[0].offset + 1
        )
    return NoOp("SET CONSTRAINTS", ())


def _options(cursor: TokenCursor, *names: str) -> None:
    """( option, ... ), or words."""
    if cursor.peek_symbol("("):
        cursor.advance()
        cursor.rewind(cursor.find())
        cursor.expect_symbol(")")
    while names and cursor.peek_any(*names):
        cursor.advance()


def _relations(cursor: TokenCursor) -> tuple[Name, ...]:
    """[name [(column, ...)], ...]"""
    found: list[Name] = []
    while not cursor.at_end or found:
        found.append(cursor.name())
        if cursor.peek_symbol("("):
            cursor.idents_in_parentheses()
        if not cursor.accept_symbol(","):
            break
    return tuple(found)
