"""The binder without Spark: constants, parameters, INSERT and UPDATE sources, views, names, errors of a
run."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlglot import exp

from tidemill.errors import TidemillError, UndefinedObject, Unsupported
from tidemill.query.settings import FIXED
from tidemill.sql.ast import Insert, Query, Values
from tidemill.sql.bind import (
    SPARK_CONF,
    BoundQuery,
    Relation,
    SessionInfo,
    bind_insert_source,
    bind_query,
    bind_scalar,
    bind_update,
    constant_rows,
    constant_value,
    substitute,
)
from tidemill.sql.bind.colname import column_name
from tidemill.sql.bind.digits import digits_of
from tidemill.sql.bind.spark_errors import map_spark_text
from tidemill.sql.functions import inventory
from tidemill.sql.names import quote_ident
from tidemill.sql.parse import parse
from tidemill.types.arrow import arrow_type
from tidemill.types.model import (
    BOOL,
    DATE,
    FLOAT8,
    INT4,
    INT8,
    NUMERIC,
    TEXT,
    TIMESTAMPTZ,
    Column,
    Kind,
    RelationDesc,
    SqlType,
    numeric,
    varchar,
)

NOW = datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)
SESSION = SessionInfo(
    database="db",
    user="ann",
    backend_pid=42,
    now=NOW,
    mz_now=17,
    setting={"search_path": "public"}.get,
    version="Tidemill 0.1",
)
T = RelationDesc((Column("a", INT4), Column("b", TEXT), Column("n", numeric(10, 2))))


class Names:
    """A table t, a view w over it, and a view that names itself."""

    def __init__(self, extra: dict[str, Relation] | None = None) -> None:
        self.known = {
            "t": Relation("u1", ("public", "t"), T, ("a", "b", "n")),
            **(extra or {}),
        }
        view = tree("SELECT a + 1 AS x, upper(b) FROM t WHERE a > 0")
        self.known["w"] = Relation(
            "u2",
            ("public", "w"),
            RelationDesc((Column("x", INT4), Column("up", TEXT))),
            view=view,
            view_scope=self,
        )
        loop = tree("SELECT * FROM loop")
        self.known["loop"] = Relation(
            "u3", ("public", "loop"), RelationDesc((Column("x", INT4),)), view=loop, view_scope=self
        )

    def relation(self, parts: tuple[str, ...], position: int | None) -> Relation:
        if parts[-1] not in self.known:
            raise UndefinedObject(
                f'relation "{parts[-1]}" does not exist', sqlstate="42P01", position=position
            )
        return self.known[parts[-1]]


def tree(sql: str) -> exp.Expr:
    (parsed,) = parse(sql)
    assert isinstance(parsed.statement, Query)
    return parsed.statement.tree


def scalar(sql: str) -> exp.Expr:
    return tree(f"SELECT {sql}").expressions[0]


def bind(sql: str, types: list[SqlType | None] | None = None, names: Names | None = None) -> BoundQuery:
    return bind_query(tree(sql), names or Names(), param_types=types or (), session=SESSION)


def rows(sql: str) -> list[dict[str, Any]]:
    found = constant_rows(bind(sql))
    assert found is not None, sql
    return found.to_pylist()


def fails(sql: str) -> TidemillError:
    with pytest.raises(TidemillError) as caught:
        bind(sql)
    return caught.value


# Without Spark


@pytest.mark.parametrize(
    ("sql", "value"),
    [
        ("1", 1),
        ("-5", -5),
        ("'a'", "a"),
        ("'a'::text", "a"),
        ("'12'::int", 12),
        ("1.50", Decimal("1.5")),
        ("1::bigint::text", "1"),
        ("2.5::int", 3),
        ("-2.5::int", -3),
        ("2 + 3 * 4", 14),
        ("true::int", 1),
        ("true::text", "true"),
        ("NULL", None),
        ("NULL::date", None),
        ("'abcdef'::varchar(3)", "abc"),
        ("'ab'::char(4)", "ab  "),
        ("1::numeric(5,2)", Decimal("1.00")),
        ("current_database()", "db"),
        ("current_user", "ann"),
        ("current_schema()", "public"),
        ("pg_backend_pid()", 42),
        ("version()", "Tidemill 0.1"),
        ("current_setting('search_path')", "public"),
        ("current_setting('nothing', true)", None),
        ("now()", NOW),
        ("mz_now()", 17),
        ("pg_typeof(1.5)", "numeric"),
        ("'{a=>1}'::map[text=>int]", [("a", 1)]),
        ("'{1,2}'::int list", [1, 2]),
        ("1.10 + 2.20", Decimal("3.3")),
        ("(1.10 + 2.20)::text", "3.30"),
    ],
)
def test_constants_need_no_spark(sql: str, value: Any) -> None:
    assert rows(f"SELECT {sql}") == [{"c0": value}]


def test_values_without_spark() -> None:
    assert rows("VALUES (1, 'x'), (2, 'y'), (NULL, NULL)") == [
        {"c0": 1, "c1": "x"},
        {"c0": 2, "c1": "y"},
        {"c0": None, "c1": None},
    ]
    assert [c.name for c in bind("VALUES (1, 'x')").columns] == ["column1", "column2"]


def test_what_only_catalog_queries_call_has_its_own_name() -> None:
    assert column_name(tree("SELECT current_schemas(true)").expressions[0]) == "current_schemas"


@pytest.mark.parametrize("sql", ["SELECT 7 / 2", "SELECT a FROM t", "SELECT lower('A')", "SELECT count(*)"])
def test_the_rest_needs_spark(sql: str) -> None:
    assert constant_rows(bind(sql)) is None


def test_ten_thousand_rows_are_bound_by_column() -> None:
    cells = ", ".join(f"({i}, 'name {i}', {i}.25, '2020-01-01', -{i}, true, NULL)" for i in range(10_000))
    (parsed,) = parse(f"INSERT INTO t VALUES {cells}")
    assert isinstance(parsed.statement, Insert) and isinstance(parsed.statement.source, Values)
    types = (INT4, TEXT, NUMERIC, DATE, INT8, BOOL, FLOAT8)
    targets = [Column(f"c{i}", t) for i, t in enumerate(types)]
    started = time.process_time()
    bound = bind_insert_source(parsed.statement.source, targets, Names(), session=SESSION)
    table = constant_rows(bound)
    taken = time.process_time() - started
    assert table is not None and table.num_rows == 10_000
    assert [f.type for f in table.schema] == [arrow_type(t) for t in types]
    assert table.column(2)[7].as_py() == Decimal("7.25") and table.column(4)[7].as_py() == -7
    # 40 ms were measured; a node per cell would take seconds.
    assert taken < 0.5, taken


# Parameters


def test_parameters_take_their_context_types() -> None:
    bound = bind("SELECT $1::int + a, b || $2 FROM t WHERE n > $3 AND a = $4 LIMIT $5 OFFSET $6")
    assert bound.param_types == (INT4, TEXT, NUMERIC, INT4, INT8, INT8)
    done = substitute(bound, [1, "it's \\ `x`", Decimal("1.5"), 4, 10, 2])
    text = done.sql()
    assert "LIMIT 10 OFFSET 2" in text and "$" not in text and ":tm" not in text
    assert r"'it\'s \\ `x`'" in text
    assert "LIMIT" not in substitute(bound, [1, "x", Decimal(1), 4, None, 0]).sql()


def test_parameters_as_constants() -> None:
    bound = bind("SELECT $1::text, $2::uuid")
    assert constant_rows(substitute(bound, ["x", bytes(16)])) == pa.table({"c0": ["x"], "c1": [bytes(16)]})
    assert bind("SELECT $1").param_types == (TEXT,)
    # What the other values show is none of its business.
    (found,) = bind("SELECT array_append(ARRAY[1.25], $1)").param_types
    assert found == NUMERIC and found.shown is None
    assert bind("SELECT $1", [INT8]).param_types == (INT8,)


@pytest.mark.parametrize(
    ("sql", "state", "text"),
    [
        ("SELECT $1, $1::int", "42P08", "inconsistent types deduced for parameter $1"),
        ("SELECT $2::int", "42P18", "could not determine data type of parameter $1"),
        ("SELECT $0", "42P02", "there is no parameter $0"),
    ],
)
def test_parameter_errors(sql: str, state: str, text: str) -> None:
    error = fails(sql)
    assert (error.sqlstate, error.primary) == (state, text)


def test_a_negative_limit_is_refused_when_it_is_known() -> None:
    bound = bind("SELECT a FROM t LIMIT $1")
    with pytest.raises(TidemillError, match="LIMIT must not be negative") as caught:
        substitute(bound, [-1]).sql()
    assert caught.value.sqlstate == "2201W"
    with pytest.raises(TidemillError) as wrong:
        substitute(bound, [])
    assert wrong.value.sqlstate == "08P01"


def test_session_values_come_with_the_run() -> None:
    bound = bind("SELECT a FROM t WHERE mz_now() > a AND now() > '2020-01-01'")
    assert bound.uses_mz_now and bound.uses_now
    later = SessionInfo(mz_now=99, now=NOW)
    assert "CAST(99 AS BIGINT)" in substitute(bound, (), later).sql()
    assert "CAST(17 AS BIGINT)" in bound.sql()


# Queries


def test_inputs_and_what_is_read_of_them() -> None:
    bound = bind("SELECT x.a FROM t x JOIN t y ON x.a = y.a WHERE y.b = 'q'")
    assert bound.inputs == {"tm_in_0": "u1"} and bound.used == {"tm_in_0": {"a", "b"}}
    assert not bound.is_constant and not bound.ordered
    assert bind("SELECT count(*) FROM t").used == {"tm_in_0": frozenset()}
    assert bind("SELECT a FROM t ORDER BY a").ordered


def test_views_are_expanded() -> None:
    bound = bind("SELECT x, up FROM w WHERE x < 10")
    assert bound.inputs == {"tm_in_0": "u1"}
    assert [(c.name, c.type) for c in bound.columns] == [("x", INT4), ("up", TEXT)]
    assert fails("SELECT * FROM loop").sqlstate == "54001"


@pytest.mark.parametrize(
    "query",
    ["WITH w (a, b) AS (SELECT 1)", "WITH RECURSIVE w (a, b) AS (SELECT 1 UNION ALL SELECT a FROM w)"],
)
def test_with_gives_no_more_names_than_there_are_columns(query: str) -> None:
    error = fails(f"{query} SELECT * FROM w")
    assert error.sqlstate == "42P10"
    assert error.primary == 'WITH query "w" has 1 columns available but 2 columns specified'


def test_describe_tells_columns_inputs_and_query() -> None:
    text = bind("SELECT a, mz_now() FROM t WHERE b = $1 ORDER BY a", [TEXT]).describe()
    assert "a: integer" in text and "tm_in_0 = u1: a, b" in text and "ordered, uses mz_now()" in text
    assert "$tm_p1" in text


@given(
    name=st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), min_size=1, max_size=20)
)
def test_any_name_round_trips(name: str) -> None:
    desc = RelationDesc((Column(name, INT4),))
    names = Names({"odd": Relation("u9", ("public", "odd"), desc, (name,))})
    quoted = quote_ident(name)
    bound = bind(
        f"SELECT {quoted}, o.{quoted} + 1 AS {quoted} FROM odd AS o ORDER BY o.{quoted}", names=names
    )
    assert [c.name for c in bound.columns] == [name, name]
    assert bound.used == {"tm_in_0": {name}}
    assert "`" + name.replace("`", "``") + "`" in bound.sql()


@pytest.mark.parametrize(
    ("sql", "position"),
    [
        ("SELECT zz FROM t", 8),
        ("SELECT a, zz.b FROM t", 11),
        ("SELECT * FROM nosuch", 15),
        ("SELECT a = 'x' FROM t", 12),
        ("SELECT 'abc'::int", 8),
        ("SELECT nosuch(1)", 8),
        ("SELECT a FROM t WHERE sum(a) > 1", 23),
    ],
)
def test_errors_know_their_place(sql: str, position: int) -> None:
    assert fails(sql).position == position


@pytest.mark.parametrize(
    "sql",
    [
        "WITH RECURSIVE r AS (SELECT 1 UNION SELECT * FROM r) SELECT * FROM r",
        "WITH RECURSIVE r AS (SELECT 1 UNION ALL SELECT * FROM r LIMIT 3) SELECT * FROM r",
        "SELECT sum(a) OVER (ORDER BY a ROWS 1 PRECEDING EXCLUDE CURRENT ROW) FROM t",
        "SELECT sum(a) OVER (ORDER BY b::date RANGE BETWEEN '1 day' PRECEDING AND '1 mon' FOLLOWING) FROM t",
        "SELECT ntile(a) OVER (ORDER BY a) FROM t",
        "SELECT rank(1) WITHIN GROUP (ORDER BY a) FROM t",
        "SELECT percentile_cont(a) WITHIN GROUP (ORDER BY a) FROM t GROUP BY a",
        "SELECT ARRAY[ARRAY[1]]",
        "SELECT (a, b) IN (SELECT a, b FROM t) FROM t",
        "SELECT a FROM t WHERE b LIKE ANY (SELECT b FROM t)",
        "SELECT jsonb_path_query(b::jsonb, '$') FROM t",
        "SELECT jsonb_each(b::jsonb) FROM t",
        "SELECT uuidv7()",
        "SELECT scale(n / 7) FROM t",
        "SELECT random(1.5, 2)",
        "SELECT array_agg(ARRAY[a]) FROM t",
        "SELECT gamma(1)",
        "SELECT t FROM t",
        "SELECT (SELECT count(*) FROM t x WHERE x.a < (SELECT max(y.a) FROM t y WHERE y.a = t.a)) FROM t",
    ],
)
def test_what_we_do_not_do_is_refused_by_name(sql: str) -> None:
    error = fails(sql)
    assert error.sqlstate == "0A000" and "not supported" in error.primary


@pytest.mark.parametrize(
    ("sql", "named"),
    [
        ("SELECT uuidv7()", "function uuidv7()"),
        ('SELECT "gamma"(1)', "function gamma()"),
        ("SELECT CLOCK_TIMESTAMP()", "function clock_timestamp()"),
        ("SELECT json_agg(a) FROM t", 'function json_agg("any")'),
        ("SELECT json_object_agg(b, a) FROM t", 'function json_object_agg("any", "any")'),
        ("SELECT row(1, 2)", "a row as a value"),
        ("SELECT (a, b) FROM t", "a row as a value"),
        ("SELECT a FROM t WHERE a IN (row(1, 2), 3)", "a row in this IN list"),
    ],
)
def test_the_refusal_has_the_name_that_was_written(sql: str, named: str) -> None:
    assert fails(sql).primary.startswith(f"{named} is not supported")


def test_rows_are_compared_however_they_are_written() -> None:
    plain = bind("SELECT (a, b) = (1, 'x'), (a, b) IN ((1, 'x')) FROM t").sql()
    assert bind("SELECT row(a, b) = row(1, 'x'), ROW(a, b) IN ((1, 'x')) FROM t").sql() == plain
    looked_up = "SELECT a FROM t WHERE {} IN (SELECT a, b FROM t)"
    assert bind(looked_up.format("row(a, b)")).sql() == bind(looked_up.format("(a, b)")).sql()


# Expressions by themselves


def test_scalars_over_a_table() -> None:
    bound = bind_scalar(scalar("a + 1 > 2"), T.columns, session=SESSION, target=BOOL, clause="WHERE")
    assert bound.type == BOOL and "`t`.`a`" in bound.sql()
    with pytest.raises(TidemillError, match="argument of WHERE must be type boolean"):
        bind_scalar(scalar("a"), T.columns, session=SESSION, target=BOOL, clause="WHERE")


def test_functions_of_values_at_hand() -> None:
    assert rows("SELECT gcd(12, 18) AS a, to_char(now(), 'YYYY') AS b, initcap(NULL)") == [
        {"c0": 6, "c1": f"{NOW:%Y}", "c2": None}
    ]
    bound = bind("SELECT lcm($1, 4)", [INT4])
    assert bound.constants is not None and bound.constants.calls
    assert constant_rows(bound, params=[pa.scalar(6, pa.int32())]) == pa.table(
        {"c0": pa.array([12], pa.int32())}
    )
    with pytest.raises(TidemillError) as caught:
        constant_rows(bind("SELECT factorial(-1)"))
    assert (caught.value.sqlstate, caught.value.primary) == (
        "22003",
        "factorial of a negative number is undefined",
    )
    # A pattern may take long, and a branch of CASE that is not taken raises nothing: these are Spark's.
    for query in ("SELECT regexp_count('a', 'a')", "SELECT CASE WHEN true THEN 1 ELSE factorial(-1) END"):
        assert constant_rows(bind(query)) is None


def test_scalars_with_a_target() -> None:
    bound = bind_scalar(scalar("'7'"), session=SESSION, target=INT8, target_column="x")
    assert constant_value(bound) == pa.scalar(7, pa.int64())
    moment = bind_scalar(scalar("now()"), session=SESSION, target=TIMESTAMPTZ, target_column="x")
    value = constant_value(moment)
    assert value is not None and value.as_py() == NOW
    with pytest.raises(TidemillError) as caught:
        bind_scalar(scalar("true"), session=SESSION, target=INT8, target_column="x")
    assert caught.value.primary == 'column "x" is of type bigint but expression is of type boolean'
    assert caught.value.hint == "You will need to rewrite or cast the expression."


# Writes


def insert(sql: str, targets: list[Column], **options: Any) -> BoundQuery:
    (parsed,) = parse(f"INSERT INTO t {sql}")
    assert isinstance(parsed.statement, Insert)
    columns = [c.value for c in parsed.statement.columns] or None
    return bind_insert_source(
        parsed.statement.source, targets, Names(), session=SESSION, columns=columns, **options
    )


TARGETS = [Column("a", INT4), Column("b", varchar(3)), Column("n", numeric(5, 1)), Column("d", DATE)]


def test_insert_values_are_assigned_cell_by_cell() -> None:
    table = constant_rows(insert("VALUES ('1', 'x', 2, '2020-01-01'), (2.5, 7, '1.25', NULL)", TARGETS))
    assert table is not None
    assert table.to_pylist() == [
        {"c0": 1, "c1": "x", "c2": Decimal("2.0"), "c3": datetime(2020, 1, 1, tzinfo=UTC).date()},
        {"c0": 3, "c1": "7", "c2": Decimal("1.3"), "c3": None},
    ]


def test_insert_fills_columns_and_defaults() -> None:
    defaults = {"b": scalar("'dd'"), "d": scalar("'2021-02-03'")}
    table = constant_rows(insert("(n, a) VALUES (1, 2), (3, 4)", TARGETS, defaults=defaults))
    assert table is not None and table.column("c0").to_pylist() == [2, 4]
    assert table.column("c1").to_pylist() == ["dd", "dd"]
    table = constant_rows(insert("VALUES (1, DEFAULT, DEFAULT, DEFAULT)", TARGETS, defaults=defaults))
    assert table is not None and table.to_pylist()[0]["c1"] == "dd"
    table = constant_rows(insert("DEFAULT VALUES", TARGETS, defaults=defaults))
    assert table is not None and table.to_pylist()[0]["c0"] is None


def test_insert_select() -> None:
    bound = insert("SELECT a, b, 7, '2020-01-01' FROM t", TARGETS)
    assert [c.type for c in bound.columns] == [c.type for c in TARGETS]
    assert "DECIMAL(5,1)" in bound.sql() and bound.inputs == {"tm_in_0": "u1"}
    table = constant_rows(insert("SELECT 1, 'x'", TARGETS[:2]))
    assert table is not None and table.to_pylist() == [{"c0": 1, "c1": "x"}]


@pytest.mark.parametrize(
    ("sql", "state", "text"),
    [
        (
            "VALUES (true, 'x', 1, NULL)",
            "42804",
            'column "a" is of type integer but expression is of type boolean',
        ),
        (
            "SELECT b, b, n, NULL FROM t",
            "42804",
            'column "a" is of type integer but expression is of type text',
        ),
        ("VALUES ('x', 'x', 1, NULL)", "22P02", 'invalid input syntax for type integer: "x"'),
        ("VALUES (1, 'long', 1, NULL)", "22001", "value too long for type character varying(3)"),
        ("VALUES (99999999999, 'x', 1, NULL)", "22003", "integer out of range"),
        ("VALUES (1, 'x', 99999, NULL)", "22003", "numeric field overflow"),
        ("VALUES (1, 2, 3, NULL, 5)", "42601", "INSERT has more expressions than target columns"),
        ("(a, b) SELECT 1", "42601", "INSERT has more target columns than expressions"),
        ("(a, zz) VALUES (1, 2)", "42703", 'column "zz" of relation does not exist'),
        ("(a, a) VALUES (1, 2)", "42701", 'column "a" specified more than once'),
    ],
)
def test_insert_errors(sql: str, state: str, text: str) -> None:
    with pytest.raises(TidemillError) as caught:
        insert(sql, TARGETS)
    assert (caught.value.sqlstate, caught.value.primary) == (state, text)


def test_update_gives_old_and_new_rows() -> None:
    table = exp.to_table("t")
    bound = bind_update(table, {"a": scalar("a + 1"), "n": None}, scalar("b = 'x'"), Names(), session=SESSION)
    assert [c.name for c in bound.columns] == ["a", "b", "n"] * 2
    assert "WHERE" in bound.sql() and "CAST(NULL AS DECIMAL(10,2))" in bound.sql()
    gone = bind_update(table, {}, None, Names(), session=SESSION)
    assert len(gone.columns) == 3
    with pytest.raises(TidemillError, match='column "zz" of relation does not exist'):
        bind_update(table, {"zz": scalar("1")}, None, Names(), session=SESSION)
    with pytest.raises(TidemillError, match='column "a" is of type integer but expression is of type text'):
        bind_update(table, {"a": scalar("b")}, None, Names(), session=SESSION)


def test_repeated_queries_do_not_grow_without_bound() -> None:
    steps = [f"a{i} AS (SELECT x.a FROM a{i - 1} x, a{i - 1} y)" for i in range(1, 40)]
    with pytest.raises(TidemillError) as caught:
        bind(f"WITH a0 AS (SELECT a FROM t), {', '.join(steps)} SELECT * FROM a39")
    assert (caught.value.sqlstate, caught.value.primary) == ("54001", "statement too complex")
    names = Names()
    for i in range(40):
        under = f"v{i - 1}" if i else "t"
        view = tree(f"SELECT x.a FROM {under} x, {under} y")
        names.known[f"v{i}"] = Relation(
            f"u1{i}", ("public", f"v{i}"), RelationDesc((Column("a", INT4),)), view=view, view_scope=names
        )
    with pytest.raises(TidemillError) as caught:
        bind("SELECT * FROM v39", names=names)
    assert caught.value.sqlstate == "54001"
    # What is named once, however long, and what is named a few times, is no matter.
    long = ", ".join(f"({i})" for i in range(5000))
    bind(f"WITH v AS (VALUES {long}) SELECT * FROM v AS x, v AS y")
    bind("SELECT * FROM v3", names=names)


def test_a_select_list_has_an_end() -> None:
    assert len(bind(f"SELECT {', '.join(['a'] * 1664)} FROM t").columns) == 1664
    for items in (", ".join(["a"] * 1665), ", ".join(["*"] * 600)):
        with pytest.raises(TidemillError, match="at most 1664 entries"):
            bind(f"SELECT {items} FROM t")


# Errors of a run


WRAPPED = """An error occurred while calling o1.getResult.
: org.apache.spark.SparkException: Exception thrown
\tat java.X
Caused by: org.apache.spark.SparkException: [SCALAR_SUBQUERY_TOO_MANY_ROWS] More than one row
"""


@pytest.mark.parametrize(
    ("text", "state", "primary"),
    [
        ("java.lang.OutOfMemoryError: Java heap space\n\tat x", "53200", "out of memory"),
        ("[FAILED_TO_PARSE_TOO_COMPLEX] The statement, incl", "54001", "statement too complex"),
        ("[DIVIDE_BY_ZERO] Division by zero. Use `try_divide` SQLSTATE: 22012", "22012", "division by zero"),
        ("[ARITHMETIC_OVERFLOW] overflow. Use 'try_add'. SQLSTATE: 22003", "22003", "bigint out of range"),
        (
            '[CAST_OVERFLOW] The value 9999999999L of the type "BIGINT" cannot be cast to "INT" due to',
            "22003",
            "integer out of range",
        ),
        (
            '[CAST_INVALID_INPUT] The value \'abc\' of the type "STRING" cannot be cast to "INT" because',
            "22P02",
            'invalid input syntax for type integer: "abc"',
        ),
        (
            WRAPPED,
            "21000",
            "more than one row returned by a subquery used as an expression",
        ),
        (
            "[USER_RAISED_EXCEPTION] tidemill:22011:negative substring length not allowed SQLSTATE: P0001",
            "22011",
            "negative substring length not allowed",
        ),
        ("[SOMETHING_NEW] It broke. SQLSTATE: 12345\n\tat a.b.C", "XX000", "Spark: It broke."),
        ("java.lang.IllegalStateException: odd\n\tat a.b.C", "XX000", "java.lang.IllegalStateException: odd"),
    ],
)
def test_spark_errors_become_postgresql_errors(text: str, state: str, primary: str) -> None:
    error = map_spark_text(text)
    assert (error.sqlstate, error.primary) == (state, primary)
    assert "\tat" not in str(error)


def test_the_spark_session_is_set_as_the_translation_needs() -> None:
    assert SPARK_CONF.items() <= FIXED.items()


def test_the_allow_list_has_no_row_twice() -> None:
    found = inventory()
    calls = [row.split(" -> ")[0] for row in found]
    assert len(calls) == len(set(calls)) and len(found) > 400


@pytest.mark.parametrize(
    ("sql", "shown"),
    [
        ("n", 2),  # a column of numeric(10,2)
        ("n * 1.5", 3),
        ("a + 1.50", 2),
        ("sum(n)", 2),
        ("coalesce(n, 0.50)", 2),
        ("coalesce(n, 0.5)", None),
        ("n / 7", None),
        ("coalesce($1, 1.50)", None),
    ],
)
def test_digits_that_a_numeric_shows(sql: str, shown: int | None) -> None:
    assert digits_of(bind(f"SELECT {sql} FROM t").columns[0].type) == shown


def test_rows_of_different_digits_show_none() -> None:
    for sql in ("VALUES (1.5), (2.50)", "SELECT 1.5 UNION ALL SELECT 2.50"):
        assert bind(sql).columns[0].type.shown is None
    assert bind("SELECT 1.25 UNION ALL SELECT 2.50").columns[0].type.shown == 2


# Records and maps


NESTED = SqlType(Kind.RECORD, fields=(Column("p", INT4), Column("X y", TEXT)))
R = RelationDesc(
    (
        Column("r", SqlType(Kind.RECORD, fields=(Column("in", NESTED), Column("b", INT8)))),
        Column("m", SqlType(Kind.MAP, element=NESTED)),
    )
)


@pytest.mark.parametrize(
    ("sql", "type_", "lowered"),
    [
        ("(r).b", INT8, "(`t1`.`r`).`b`"),
        ('((r)."in").p', INT4, "((`t1`.`r`).`in`).`p`"),
        ('(s.r)."in"."X y"', TEXT, "((`t1`.`r`).`in`).`X%20y`"),
        ("(m -> 'k').p", INT4, "(try_element_at(`t1`.`m`, 'k')).`p`"),
    ],
)
def test_fields_of_records_and_entries_of_maps(sql: str, type_: SqlType, lowered: str) -> None:
    names = Names({"s": Relation("u4", ("public", "s"), R, ("r", "m"))})
    found = bind(f"SELECT {sql} FROM s", names=names)
    assert [c.type for c in found.columns] == [type_]
    assert found.sql() == f"SELECT {lowered} AS `c0` FROM `tm_in_0` AS `t1`"


@pytest.mark.parametrize(
    ("sql", "sqlstate", "text"),
    [
        ("(a).x", "42809", "column notation .x applied to type integer, which is not a composite type"),
        ("(1, 2).f1", "0A000", "selecting a field of a row is not supported"),
        ("'{a=>1}'::map[text=>int] -> 5", "42883", "operator does not exist: map[text=>integer] -> integer"),
    ],
)
def test_fields_of_what_has_none(sql: str, sqlstate: str, text: str) -> None:
    error = fails(f"SELECT {sql} FROM t")
    assert (error.sqlstate, error.primary) == (sqlstate, text)


@pytest.mark.parametrize(
    ("series", "ends", "partitions"),
    [
        ("1, 10", (1, 11, 1), 1),
        ("10, 1, -3", (10, -2, -3), 1),
        ("5, 1", (5, 5, 1), 1),
        ("1::bigint, 1040000", (1, 1040001, 1), 4),
        ("1, length('x')", None, 0),
        ("0, 1000000000", (0, 1000000001, 1), 1000),
        ("9223372036854775806, 9223372036854775807", None, 0),
        ("1, 10, 0", None, 0),
        ("1, NULL", None, 0),
        ("1, 10.0", None, 0),
    ],
)
def test_long_series_are_counted_in_partitions(
    series: str, ends: tuple[int, int, int] | None, partitions: int
) -> None:
    """One array of all its numbers would have to fit a task, and so would all that is made of them."""
    text = bind(f"SELECT g FROM generate_series({series}) AS g").sql()
    if ends is None:
        assert "range(" not in text and "sequence(" in text
    else:
        start, end, step = ends
        numbers = ", ".join(f"CAST({n} AS BIGINT)" for n in (start, end, step))
        assert f"FROM range({numbers}, {partitions})" in text


def test_map_build_is_refused_with_what_to_write() -> None:
    with pytest.raises(Unsupported, match=r"map_build\(\) is not supported") as caught:
        bind("SELECT map_build(LIST['a'])")
    assert "INCLUDE HEADER 'key'" in str(caught.value.hint)
