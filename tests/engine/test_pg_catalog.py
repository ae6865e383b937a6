"""pg_catalog from a catalog state: OIDs, names, what is visible, and that every relation gives the columns
that it says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tidemill.catalog.access import PUBLIC
from tidemill.catalog.comment_ops import SetComment
from tidemill.catalog.items import BUILTINS, Key
from tidemill.catalog.ops import (
    CreateDatabaseOp,
    CreateRoleOp,
    CreateSchemaOp,
    CreateTableOp,
    CreateViewOp,
    apply_all,
)
from tidemill.catalog.role_ops import SetMember, SetPrivileges
from tidemill.catalog.state import CatalogState
from tidemill.engine.read.catalog_query import local_oids
from tidemill.engine.relations.pg.facts import PgFacts, split_name
from tidemill.engine.relations.pg.functions import catalog_functions
from tidemill.engine.relations.pg.owners import acl, owner_of
from tidemill.engine.relations.pg.row_cache import KeptRows
from tidemill.engine.relations.pg.types import format_type, types
from tidemill.engine.relations.pg.world import world
from tidemill.engine.relations.resolver import Resolver
from tidemill.engine.relations.system import SYSTEM_RELATIONS, SYSTEM_RELATIONS_BY_ID, SystemRelation
from tidemill.engine.session.portals import Portals
from tidemill.engine.session.variables import VariableRow, Variables
from tidemill.errors import LimitExceeded, TidemillError
from tidemill.sql.ast import Query
from tidemill.sql.bind import SessionInfo
from tidemill.sql.local import NotLocal, Reg, compile_query
from tidemill.sql.local import model as local_model
from tidemill.sql.parse import parse
from tidemill.types.model import INT4, TEXT, Column, RelationDesc, numeric
from tidemill.types.wire import oid, type_of_oid, typmod

DESC = RelationDesc((Column("id", INT4, nullable=False), Column("Name", TEXT), Column("n", numeric(10, 2))))
SESSION = SessionInfo(database="d", schemas=("public",), version="PostgreSQL 16.4 (Tidemill)")


@dataclass
class Now:
    """What the rows are made from, with nobody connected."""

    catalog: CatalogState
    database: str = "d"

    def sessions(self) -> Sequence[Any]:
        return []

    def variables(self) -> Iterable[VariableRow]:
        return Variables({}).rows()

    def prepared(self) -> Sequence[Any]:
        return []

    def portals(self) -> Portals:
        return Portals()


@pytest.fixture(scope="module")
def state() -> CatalogState:
    made = apply_all(
        CatalogState(BUILTINS.items, next_id=1, time=0),
        [CreateRoleOp("materialize"), CreateDatabaseOp("d"), CreateDatabaseOp("elsewhere")],
        time=1,
    )
    database = made.database("d").id
    public = made.schema(database, "public").id
    made = apply_all(made, [CreateSchemaOp(database, "Other")], time=2)
    other = made.schema(database, "Other").id
    away = made.schema(made.database("elsewhere").id, "public").id
    made = apply_all(
        made,
        [
            CreateTableOp(
                public, "t", DESC, (None, "'x'", None), (Key(("id",), primary=True), Key(("Name", "n")))
            ),
            CreateViewOp(public, "v", "SELECT id FROM t", RelationDesc(DESC.columns[:1])),
            CreateTableOp(other, "t", DESC),
            CreateTableOp(other, "only", DESC),
            CreateTableOp(away, "hidden", DESC),
        ],
        time=3,
    )
    return apply_all(made, [SetComment(made.resolve(("t",), "d", ["public"]).id, "Name", "called")], time=4)


def ask(state: CatalogState, sql: str, *params: Any, session: SessionInfo = SESSION) -> list[tuple[Any, ...]]:
    (parsed,) = parse(sql)
    assert isinstance(parsed.statement, Query)
    names = Resolver(state, session.database, session.schemas)
    query = compile_query(parsed.statement.tree, names, session, catalog_functions(), local_oids(), ())

    def rows(relation: str) -> Any:
        return SYSTEM_RELATIONS_BY_ID[relation].rows(Now(state, session.database))  # pyright: ignore[reportArgumentType]

    table = query.run(PgFacts(state, session), rows, params, lambda: None)
    return list(zip(*(c.to_pylist() for c in table.columns), strict=True))


@pytest.mark.parametrize(
    ("expression", "name"),
    [
        ("'pg_class'::regclass", "regclass"),
        ("('pg_class'::regclass)", "regclass"),
        ("'pg_class'::regclass::oid", "oid"),
        ("('pg_class'::regclass)::oid::int8", "int8"),
        ("(SELECT 'pg_class'::regclass::oid)", "oid"),
        ("'{}'::json", "json"),
        ("oid::regclass::text", "oid"),
        ("(relname::regclass)::oid", "relname"),
    ],
)
def test_names_of_casts(state: CatalogState, expression: str, name: str) -> None:
    (parsed,) = parse(f"SELECT {expression} FROM pg_class")
    assert isinstance(parsed.statement, Query)
    names = Resolver(state, SESSION.database, SESSION.schemas)
    query = compile_query(parsed.statement.tree, names, SESSION, catalog_functions(), local_oids(), ())
    assert [column.name for column in query.columns] == [name]


@pytest.mark.parametrize("key", [k for k in SYSTEM_RELATIONS if k[0] in ("pg_catalog", "information_schema")])
def test_every_relation_can_be_read(state: CatalogState, key: tuple[str, str]) -> None:
    table = SYSTEM_RELATIONS[key].table(Now(state))  # pyright: ignore[reportArgumentType]
    assert table.num_columns == len(SYSTEM_RELATIONS[key].desc.columns)
    assert ask(state, f"SELECT count(*) FROM {key[0]}.{key[1]}") == [(table.num_rows,)]


def test_oids_are_one_each(state: CatalogState) -> None:
    for relation in (
        "pg_class",
        "pg_namespace",
        "pg_type",
        "pg_constraint",
        "pg_attrdef",
        "pg_proc",
        "pg_operator",
    ):
        assert ask(state, f"SELECT oid FROM {relation} GROUP BY oid HAVING count(*) > 1") == [], relation
    assert ask(state, "SELECT 'pg_class'::regclass::oid, 'pg_type'::regclass::oid") == [(1259, 1247)]


def test_oids_do_not_change_when_others_come(state: CatalogState) -> None:
    before = {r.id: r.oid for r in world(state, "d").relations}
    public = state.schema(state.database("d").id, "public").id
    later = apply_all(state, [CreateTableOp(public, "later", DESC)], time=9)
    after = {r.id: r.oid for r in world(later, "d").relations}
    assert {i: o for i, o in after.items() if i in before} == before


def test_one_database_is_seen(state: CatalogState) -> None:
    asked = "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname IN ('t', 'hidden') ORDER BY 1"
    assert ask(state, asked) == [("t",), ("t",)]
    assert ask(state, asked, session=replace(SESSION, database="elsewhere")) == [("hidden",)]


def test_names_of_oids(state: CatalogState) -> None:
    facts = PgFacts(state, SESSION)
    for text, shown in {
        "t": "t",
        '"Other".t': '"Other".t',
        '"Other"."only"': '"Other"."only"',
        "public.v": "v",
        "pg_class": "pg_class",
        "pg_catalog.pg_type": "pg_type",
        "mz_tables": "mz_catalog.mz_tables",
        "t_pkey": "t_pkey",
    }.items():
        assert facts.reg_output(Reg.CLASS, facts.reg_input(Reg.CLASS, text)) == shown
    for text in ("nothing", '"T"', "public.only", "hidden"):
        with pytest.raises(TidemillError) as found:
            facts.reg_input(Reg.CLASS, text)
        assert found.value.sqlstate == "42P01"
    assert (
        facts.reg_output(Reg.TYPE, facts.reg_input(Reg.TYPE, "character varying(3)[]"))
        == "character varying[]"
    )
    assert facts.reg_output(Reg.CLASS, 4_000_000_000) == "4000000000"
    assert facts.reg_output(Reg.NAMESPACE, facts.reg_input(Reg.NAMESPACE, '"Other"')) == '"Other"'
    assert ask(state, "SELECT 't'::regclass, to_regclass('nothing'), 0::oid::regclass") == [("t", None, "-")]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("A", ["a"]),
        ('"A"', ["A"]),
        ('a."B.c"', ["a", "B.c"]),
        ('"q""q".d', ['q"q', "d"]),
        (" a . b ", ["a", "b"]),
        (' "public" . "T" ', ["public", "T"]),
    ],
)
def test_names_are_split(text: str, parts: list[str]) -> None:
    assert split_name(text) == parts


@pytest.mark.parametrize("text", ["", "a..b", '"a', '"a"b', "a.", '"a" b', '"a" . '])
def test_names_that_are_none(text: str) -> None:
    with pytest.raises(TidemillError):
        split_name(text)


def test_what_is_visible(state: CatalogState) -> None:
    asked = """SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE pg_table_is_visible(c.oid) AND n.nspname <> 'pg_catalog' AND relkind IN ('r', 'v')
        ORDER BY 1, 2"""
    assert ask(state, asked) == [("public", "t"), ("public", "v")]
    both = replace(SESSION, schemas=("Other", "public"))
    assert ask(state, asked, session=both) == [("Other", "only"), ("Other", "t"), ("public", "v")]


def test_every_type_is_written_as_it_is_read() -> None:
    """format_type of what a column is sent as, for all types that a client may name by OID."""
    for number in types():
        t = type_of_oid(number)
        if t is not None and oid(t) == number:
            assert format_type(number, -1) == str(t)
    price = numeric(10, 2)
    assert format_type(oid(price), typmod(price)) == "numeric(10,2)"
    assert (format_type(None, None), format_type(0, None), format_type(999_999, -1)) == (None, "-", "???")


def test_definitions_and_comments(state: CatalogState) -> None:
    assert ask(
        state,
        """SELECT conname, pg_get_constraintdef(oid), pg_get_indexdef(conindid),
            pg_get_indexdef(conindid, 1, true)
        FROM pg_constraint WHERE conrelid = 't'::regclass ORDER BY conindid""",
    ) == [
        ("t_pkey", "PRIMARY KEY (id)", "CREATE UNIQUE INDEX t_pkey ON public.t USING btree (id)", "id"),
        (
            "t_Name_n_key",
            'UNIQUE ("Name", n)',
            'CREATE UNIQUE INDEX "t_Name_n_key" ON public.t USING btree ("Name", n)',
            '"Name"',
        ),
    ]
    assert ask(state, "SELECT col_description('t'::regclass, 2), pg_get_viewdef('v'::regclass)") == [
        ("called", "SELECT id FROM t;")
    ]


def test_who_may_what(state: CatalogState) -> None:
    table = state.resolve(("t",), "d", ["public"]).id
    group, one = (CreateRoleOp(n) for n in ("group", "one"))
    state = apply_all(state, [group, one], time=5)
    ids = {n: state.role(n).id for n in ("group", "one")}
    state = apply_all(
        state, [SetMember(ids["group"], ids["one"]), SetPrivileges(table, ids["group"], ("SELECT",))], time=6
    )
    assert ask(
        state,
        """SELECT pg_has_role('one', 'group', 'MEMBER'), pg_has_role('group', 'one', 'USAGE'),
            pg_has_role('one', 'one', 'USAGE'), pg_has_role('mz_system', 'one', 'MEMBER'),
            pg_has_role('one', 'group', 'MEMBER WITH ADMIN OPTION'), pg_has_role(1::oid, 'MEMBER')""",
    ) == [(True, False, True, True, False, None)]
    assert ask(
        state,
        """SELECT has_table_privilege('one', 't', 'SELECT'), has_table_privilege('one', 't', 'UPDATE'),
            has_table_privilege('one', 't', 'UPDATE, SELECT'), has_table_privilege('one', 't', 'TRUNCATE'),
            has_table_privilege('one', 'pg_class', 'SELECT'),
            has_table_privilege('one', 'pg_class', 'DELETE'),
            has_table_privilege('one', 1::oid, 'SELECT'), has_schema_privilege('one', '"Other"', 'USAGE'),
            has_table_privilege('one', 't', 'SELECT WITH GRANT OPTION'),
            has_table_privilege('mz_system', 't', 'SELECT WITH GRANT OPTION')""",
    ) == [(True, False, True, False, True, False, None, False, False, True)]
    everybody = """SELECT has_table_privilege('public', 't', 'SELECT'),
        has_table_privilege('public', 't', 'SELECT WITH GRANT OPTION'),
        has_table_privilege('public', '"Other".t', 'SELECT'), has_table_privilege(0::oid, 't', 'SELECT'),
        has_table_privilege('public', 'pg_class', 'SELECT'),
        has_table_privilege('public', 'pg_class', 'INSERT'),
        has_schema_privilege('public', 'public', 'USAGE'), has_schema_privilege('public', 'public', 'CREATE'),
        has_database_privilege('public', 'd', 'CONNECT'), has_table_privilege('public', 1::oid, 'SELECT')"""
    assert ask(state, everybody) == [(False, False, False, False, True, False, True, False, True, None)]
    open_to_all = apply_all(state, [SetPrivileges(table, PUBLIC, ("SELECT",))], time=7)
    assert ask(open_to_all, everybody) == [(True, False, False, True, True, False, True, False, True, None)]
    owner = owner_of(state, state.items[table])
    state = apply_all(state, [SetPrivileges(table, owner.id, ("SELECT",))], time=7)
    assert acl(state, state.items[table]) == [f"{owner.name}=arwd/{owner.name}", f"group=r/{owner.name}"]
    for call, sqlstate in [
        ("pg_has_role('nobody', 'one', 'MEMBER')", "42704"),
        ("pg_has_role('one', 'SELECT')", "22023"),
        ("has_table_privilege('nothing', 'SELECT')", "42P01"),
        ("has_table_privilege('nobody', 't', 'SELECT')", "42704"),
        ("has_table_privilege('PUBLIC', 't', 'SELECT')", "42704"),
        ("pg_has_role('public', 'one', 'MEMBER')", "42704"),
        ("has_table_privilege('one', 't', 'FLY')", "22023"),
        ("has_schema_privilege('one', 'nowhere', 'USAGE')", "3F000"),
        ("has_database_privilege('one', 'nowhere', 'CREATE')", "3D000"),
    ]:
        with pytest.raises(TidemillError) as caught:
            ask(state, f"SELECT {call}", session=replace(SESSION, user="one"))
        assert caught.value.sqlstate == sqlstate, call


def test_a_product_by_mistake_ends(state: CatalogState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_model, "MAX_STEPS", 10_000)
    with pytest.raises(LimitExceeded):
        ask(state, "SELECT count(*) FROM pg_attribute a, pg_attribute b WHERE a.attname < b.attname")


def test_what_is_not_known_is_left_to_the_binder(state: CatalogState) -> None:
    for sql in (
        "SELECT * FROM t",
        "SELECT nothing FROM pg_class",
        "SELECT relname, count(*) FROM pg_class",
        "SELECT avg(relnatts) FROM pg_class",
        "SELECT relnatts / 0 FROM pg_class",
        "SELECT mz_now() FROM pg_class",
        "SELECT nofunction(oid) FROM pg_class",
    ):
        with pytest.raises(NotLocal):
            ask(state, sql)


@pytest.mark.parametrize("by", ["1", "o", "pg_get_userbyid(relowner)", "relowner"])
def test_groups_by_what_the_select_list_computes(state: CatalogState, by: str) -> None:
    rows = ask(state, f"SELECT pg_get_userbyid(relowner) AS o, count(*) > 1 FROM pg_class GROUP BY {by}")
    assert rows and all(many for _, many in rows)
    with pytest.raises(NotLocal):
        ask(state, f"SELECT pg_get_userbyid(relowner) AS o, relname FROM pg_class GROUP BY {by}")
    with pytest.raises(NotLocal):
        ask(state, "SELECT * FROM pg_class GROUP BY 1, 2")


def test_rows_are_kept_while_the_catalog_stays(state: CatalogState) -> None:
    kept = KeptRows()
    classes, settings = (
        SYSTEM_RELATIONS["pg_catalog", "pg_class"],
        SYSTEM_RELATIONS["pg_catalog", "pg_settings"],
    )

    def rows(relation: SystemRelation, now: Now) -> Any:
        return kept.rows(relation, now)  # pyright: ignore[reportArgumentType]

    first = rows(classes, Now(state))
    assert rows(classes, Now(state)) is first
    assert rows(classes, Now(state, "elsewhere")) is not first
    public = state.schema(state.database("d").id, "public").id
    later = apply_all(state, [CreateTableOp(public, "later", DESC)], time=9)
    assert len(rows(classes, Now(later))) == len(first) + 1
    assert rows(classes, Now(state)) == first
    assert rows(settings, Now(state)) is not rows(settings, Now(state))


def test_bytes_as_characters(state: CatalogState) -> None:
    """As PostgreSQL has them: a number is a byte's, shown in octal where it is no character."""
    asked = (
        """SELECT 65::"char", (-3)::"char", 0::"char", 'AB'::"char", 'A'::"char"::int, (-3)::"char"::int"""
    )
    assert ask(state, f"{asked} FROM pg_database LIMIT 1") == [("A", "\\375", "", "A", 65, -3)]
    for cast, sqlstate in (("200", "22003"), ("65::int2", "42846")):
        with pytest.raises(TidemillError) as caught:
            ask(state, f'SELECT ({cast})::"char" FROM pg_database')
        assert caught.value.sqlstate == sqlstate
