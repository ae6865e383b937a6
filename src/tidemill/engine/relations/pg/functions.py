"""Functions that read the catalog or the session: format_type, pg_get_viewdef, current_schemas, ..."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from tidemill.catalog.items import MaterializedView, View
from tidemill.engine.relations.pg.definitions import constraint_definition, index_definition
from tidemill.engine.relations.pg.descriptions import description
from tidemill.engine.relations.pg.facts import PgFacts
from tidemill.engine.relations.pg.procs import procs
from tidemill.engine.relations.pg.rights import has_role, may
from tidemill.engine.relations.pg.types import format_type
from tidemill.engine.relations.pg.zones import zones
from tidemill.engine.relations.view_text import query_today
from tidemill.errors import UndefinedObject
from tidemill.sql.local import Function, Reg, Runtime
from tidemill.sql.local.builtins import builtins
from tidemill.sql.local.functions import Declared
from tidemill.sql.local.kinds import OIDVECTOR
from tidemill.sql.names import RESERVED, RESERVED_FUNCTION_OR_TYPE, quote_ident
from tidemill.types import model
from tidemill.types.model import BOOL, INT2, INT4, INT8, INTERVAL, NAME, OID, TEXT, TIMESTAMPTZ, Column


def _asks(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose first argument is the `SessionFacts` of the session."""

    def call(rt: Runtime, *args: Any) -> Any:
        assert isinstance(rt.facts, PgFacts)
        return fn(rt.facts, *args)

    return call


def _f(
    name: str, args: Sequence[Declared], result: Declared, fn: Callable[..., Any], **more: Any
) -> Function:
    return Function(name, tuple(args), result, _asks(fn), **more)


def _view_definition(f: PgFacts, oid: int, pretty: bool | None = None) -> str | None:
    del pretty
    found = f.world.by_oid.get(oid)
    if found is None or not isinstance(found.item, View | MaterializedView):
        return None
    return f"{query_today(f.catalog, found.item, f.name_of)};"


def _index_definition(
    f: PgFacts, oid: int, column: int | None = None, pretty: bool | None = None
) -> str | None:
    del pretty
    found = f.world.keys.get(oid)
    if found is None:
        return None
    relation, key = found
    if not column:
        return index_definition(relation, key)
    return quote_ident(relation.desc.names[key.numbers[column - 1] - 1]) if column <= len(key.numbers) else ""


def _constraint_definition(f: PgFacts, oid: int, pretty: bool | None = None) -> str | None:
    del pretty
    found = f.world.keys.get(oid)
    return None if found is None else constraint_definition(*found)


def _user(f: PgFacts, oid: int) -> str:
    return f.roles().get(oid, f"unknown (OID={oid})")


def _setting(f: PgFacts, name: str, missing_ok: bool | None = None) -> str | None:
    found = f.session.setting(name)
    if found is None and not missing_ok:
        raise UndefinedObject(f'unrecognized configuration parameter "{name}"', sqlstate="42704")
    return found


def _schemas(f: PgFacts, implicit: bool) -> list[str]:
    known = set(f.world.namespaces.values())
    return [s for s in (f.path() if implicit else f.session.schemas) if s in known]


def _schema(f: PgFacts) -> str | None:
    return next(iter(_schemas(f, False)), None)


def _to(kind: Reg) -> Callable[[PgFacts, str], int | None]:
    return lambda f, text: int(text) if text.isdigit() else f.find(kind, text)


def _nothing(*args: Any) -> None:
    del args


def _true(*args: Any) -> bool:
    del args
    return True


def _false(*args: Any) -> bool:
    del args
    return False


def _none(*args: Any) -> list[Any]:
    del args
    return []


def _type_list(f: PgFacts, oids: Sequence[int]) -> str:
    del f
    return ", ".join(format_type(o, None) or "-" for o in oids)


def _keywords(f: PgFacts) -> list[tuple[str, str, str]]:
    del f
    reserved = [(w, "R", "reserved") for w in sorted(RESERVED)]
    return reserved + [
        (w, "T", "reserved (can be function or type name)") for w in sorted(RESERVED_FUNCTION_OR_TYPE)
    ]


def _arguments(f: PgFacts, oid: int) -> str | None:
    del f
    found = procs().get(oid)
    return None if found is None else found.arguments


def _result(f: PgFacts, oid: int) -> str | None:
    del f
    found = procs().get(oid)
    return None if found is None else found.result_text


def _allowed(name: str) -> list[Function]:
    """has_..._privilege([user,] object, privilege), the object by name or OID."""
    kind = name.removeprefix("has_").removesuffix("_privilege")
    # A literal is a name, so the overloads with names are first.
    one: list[tuple[Declared, ...]] = [(TEXT,), (OID,)]
    if kind == "column":
        one = [(o, c) for o in (TEXT, OID) for c in (TEXT, INT2)]

    def for_me(f: PgFacts, *args: Any) -> bool | None:
        return may(f, None, kind, args[0], args[-1])

    def for_user(f: PgFacts, user: Any, *args: Any) -> bool | None:
        return may(f, user, kind, args[0], args[-1])

    return [
        *(_f(name, (*args, TEXT), BOOL, for_me) for args in one),
        *(_f(name, (u, *args, TEXT), BOOL, for_user) for u in (TEXT, OID) for args in one),
    ]


_VISIBLE = """type function operator opclass opfamily collation conversion ts_config ts_dict ts_parser
    ts_template statistics_obj"""
_PRIVILEGES = """table schema database column any_column function sequence language type tablespace
    foreign_data_wrapper server parameter"""
_SIZES = "pg_relation_size pg_total_relation_size pg_table_size pg_indexes_size"

_KEYWORD = model.record(Column("word", TEXT), Column("catcode", TEXT), Column("catdesc", TEXT))
_OPTION = model.record(Column("option_name", TEXT), Column("option_value", TEXT))
_EXTENSION = model.record(Column("name", NAME), Column("default_version", TEXT), Column("comment", TEXT))
_ZONE = model.record(
    Column("name", TEXT), Column("abbrev", TEXT), Column("utc_offset", INTERVAL), Column("is_dst", BOOL)
)
_ACL = model.record(
    Column("grantor", OID),
    Column("grantee", OID),
    Column("privilege_type", TEXT),
    Column("is_grantable", BOOL),
)

_FUNCTIONS: list[Function] = [
    _f("format_type", (OID, INT4), TEXT, lambda f, o, m: format_type(o, m), lenient=True),
    _f("pg_get_expr", (TEXT, OID, BOOL), TEXT, lambda f, t, o, p: t, optional=1),
    _f("pg_get_userbyid", (OID,), NAME, _user),
    _f("pg_table_is_visible", (OID,), BOOL, lambda f, o: f.is_visible(o)),
    *(_f(f"pg_{kind}_is_visible", (OID,), BOOL, _true) for kind in _VISIBLE.split()),
    _f("pg_get_viewdef", (OID, BOOL), TEXT, _view_definition, optional=1),
    _f("pg_get_viewdef", (Reg.CLASS, BOOL), TEXT, _view_definition, optional=1),
    _f("pg_get_indexdef", (OID, INT4, BOOL), TEXT, _index_definition, optional=2),
    _f("pg_get_constraintdef", (OID, BOOL), TEXT, _constraint_definition, optional=1),
    *(
        _f(name, (OID,), TEXT, _arguments)
        for name in ("pg_get_function_arguments", "pg_get_function_identity_arguments")
    ),
    _f("pg_get_function_result", (OID,), TEXT, _result),
    *(
        _f(name, (OID, BOOL), TEXT, _nothing, optional=1)
        for name in (
            "pg_get_functiondef",
            "pg_get_ruledef",
            "pg_get_triggerdef",
            "pg_get_partkeydef",
            "pg_get_statisticsobjdef",
            "pg_get_statisticsobjdef_columns",
            "pg_get_function_sqlbody",
        )
    ),
    _f(
        "obj_description",
        (OID, NAME),
        TEXT,
        lambda f, o, c: description(f.catalog, c, o),
        optional=1,
        lenient=True,
    ),
    _f("col_description", (OID, INT4), TEXT, lambda f, o, n: description(f.catalog, "pg_class", o, n)),
    _f("shobj_description", (OID, NAME), TEXT, lambda f, o, c: description(f.catalog, c, o)),
    _f("getdatabaseencoding", (), NAME, lambda f: "UTF8"),
    _f("pg_get_serial_sequence", (TEXT, TEXT), TEXT, _nothing),
    _f("pg_relation_is_publishable", (Reg.CLASS,), BOOL, _false),
    *(_f(name, (Reg.CLASS, TEXT), INT8, _nothing, optional=1) for name in _SIZES.split()),
    *(_f("pg_database_size", (t,), INT8, _nothing) for t in (NAME, OID)),
    _f("pg_stat_get_numscans", (OID,), INT8, _nothing),
    _f("pg_tablespace_size", (OID,), INT8, _nothing),
    _f("pg_tablespace_location", (OID,), TEXT, lambda f, o: ""),
    _f("pg_partition_ancestors", (Reg.CLASS,), OID, _none, rows=True),
    _f("pg_options_to_table", (model.array(TEXT),), _OPTION, _none, rows=True),
    _f("aclexplode", (model.array(TEXT),), _ACL, _none, rows=True),
    _f("oidvectortypes", (OIDVECTOR,), TEXT, _type_list),
    _f("pg_timezone_names", (), _ZONE, lambda f: zones(f.session.now), rows=True),
    _f("pg_available_extensions", (), _EXTENSION, _none, rows=True),
    _f("pg_get_keywords", (), _KEYWORD, _keywords, rows=True),
    # Advisory locks do not exist here; connection pools release all of them when a connection is returned.
    _f("pg_advisory_unlock_all", (), TEXT, lambda f: ""),
    _f("pg_listening_channels", (), TEXT, _none, rows=True),
    _f("current_schemas", (BOOL,), model.array(NAME), _schemas),
    _f("current_schema", (), NAME, _schema),
    _f("current_database", (), NAME, lambda f: f.session.database),
    _f("version", (), TEXT, lambda f: f.session.version),
    _f("pg_backend_pid", (), INT4, lambda f: f.session.backend_pid),
    _f("current_setting", (TEXT, BOOL), TEXT, _setting, optional=1),
    *(_f(name, (), TIMESTAMPTZ, lambda f: f.session.now) for name in ("now", "transaction_timestamp")),
    _f("to_regclass", (TEXT,), Reg.CLASS, _to(Reg.CLASS)),
    _f("to_regtype", (TEXT,), Reg.TYPE, _to(Reg.TYPE)),
    _f("to_regnamespace", (TEXT,), Reg.NAMESPACE, _to(Reg.NAMESPACE)),
    _f("to_regrole", (TEXT,), Reg.ROLE, _to(Reg.ROLE)),
    _f("to_regproc", (TEXT,), Reg.PROC, _to(Reg.PROC)),
    *(fn for kind in _PRIVILEGES.split() for fn in _allowed(f"has_{kind}_privilege")),
    *(_f("pg_has_role", (u, r, TEXT), BOOL, has_role) for u in (TEXT, OID) for r in (TEXT, OID)),
    *(_f("pg_has_role", (r, TEXT), BOOL, lambda f, r, p: has_role(f, None, r, p)) for r in (TEXT, OID)),
    _f("pg_my_temp_schema", (), OID, lambda f: 0),
    _f("pg_is_other_temp_schema", (OID,), BOOL, _false),
    _f("pg_is_in_recovery", (), BOOL, _false),
    _f("pg_char_to_encoding", (NAME,), INT4, lambda f, n: 6 if n.upper() in ("UTF8", "UTF-8") else -1),
    _f("inet_server_addr", (), TEXT, _nothing),
    _f("inet_server_port", (), INT4, _nothing),
]


@cache
def catalog_functions() -> Mapping[str, Sequence[Function]]:
    """All functions that a query over system relations may call."""
    found: dict[str, list[Function]] = {name: list(rows) for name, rows in builtins().items()}
    for fn in _FUNCTIONS:
        found.setdefault(fn.name, []).append(fn)
    return found
