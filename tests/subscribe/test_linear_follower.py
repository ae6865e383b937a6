"""Linear queries on changes alone: at every time the changes so far are what SELECT answers there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from told_spans import Told, Update, updates_table

from support.bound import Names
from tidemill.errors import TidemillError
from tidemill.query.evaluations import Evaluations
from tidemill.query.linear_changes import ChangePiece, Formula, evaluate
from tidemill.query.multiset import expand
from tidemill.query.read import ConstantInput
from tidemill.query.run import collect
from tidemill.query.spark import SparkHost
from tidemill.sql.bind import ROW, BoundQuery, linearity
from tidemill.subscribe.linear import LinearFollower
from tidemill.types.arrow import DIFF_COLUMN, TIME_COLUMN, arrow_schema
from tidemill.types.identity import consolidate
from tidemill.types.model import INT4, NUMERIC, TEXT, Column, RelationDesc
from tidemill.types.parse_name import parse_type
from tidemill.types.wire.text import decode_text

pytestmark = pytest.mark.spark

DESC = RelationDesc((Column("a", INT4), Column("b", INT4), Column("s", TEXT), Column("n", NUMERIC)))
NAMES = Names(
    {"t": DESC, "u": DESC},
    {"few": "SELECT a, s AS text, n FROM t WHERE b > 0", "sums": "SELECT a + b AS c, s FROM t"},
)
SCHEMA = arrow_schema(DESC)


def table(updates: Sequence[Update]) -> pa.Table:
    return updates_table(updates, DESC)


def follower(evaluations: Evaluations, bound: BoundQuery, inputs: Mapping[str, Told]) -> LinearFollower:
    found = linearity(bound)
    assert found.because is None
    named = {placeholder: inputs[relation] for placeholder, relation in bound.inputs.items()}
    return LinearFollower(evaluations, bound.columns, found.branches, named, 0)


def answer(
    spark: SparkHost, bound: BoundQuery, histories: Mapping[str, Sequence[Update]], at: int
) -> Counter[Any]:
    """What SELECT says at a time."""
    inputs: dict[str, ConstantInput] = {}
    for placeholder, relation in bound.inputs.items():
        past = table([u for u in histories[relation] if u[1] <= at]).drop_columns([TIME_COLUMN])
        inputs[placeholder] = ConstantInput(expand(consolidate(past, RelationDesc()), SCHEMA.names))
    return rows(collect(spark, bound.sql(), inputs, bound.columns))


def rows(found: pa.Table) -> Counter[Any]:
    return Counter(zip(*(column.to_pylist() for column in found.columns), strict=True))


def told(follow: LinearFollower, until: int) -> dict[int, Counter[Any]]:
    """The changes by time; in order, each row of a time once."""
    found: dict[int, Counter[Any]] = {}
    lower = 0
    while follow.frontier < until:
        changes = follow.advance()
        if changes is None:
            continue
        assert (changes.lower, changes.upper) == (lower, follow.frontier)
        lower = changes.upper
        *columns, times, diffs = (c.to_pylist() for c in changes.updates.columns)
        assert times == sorted(times) and all(changes.lower <= t < changes.upper for t in times)
        for row, time, diff in zip(zip(*columns, strict=True), times, diffs, strict=True):
            of_time = found.setdefault(time, Counter())
            assert row not in of_time and diff
            of_time[row] = diff
    return found


# -- any history, any linear query ------------------------------------------------------------------------

VALUES = st.tuples(
    st.sampled_from([None, -1, 0, 1, 2]),
    st.sampled_from([None, 0, 1, 3]),
    st.sampled_from([None, "", "x", "Xy", "ß"]),
    st.sampled_from([None, "0", "1.5", "-2.25"]),
)
LAST = 4


@st.composite
def histories(draw: st.DrawFn) -> list[Update]:
    """Inserts, updates and deletes of rows that may be there more than once."""
    here: Counter[tuple[Any, ...]] = Counter()
    updates: list[Update] = []
    for time in range(1, LAST + 1):
        for _ in range(draw(st.integers(0, 3))):
            there = sorted((+here).elements(), key=str)
            if there and draw(st.booleans()):
                gone = draw(st.sampled_from(there))
                here[gone] -= 1
                updates.append((gone, time, -1))
                if draw(st.booleans()):
                    continue
            row, copies = draw(VALUES), draw(st.sampled_from([1, 1, 2]))
            here[row] += copies
            updates.append((row, time, copies))
    return updates


def sources(columns: dict[str, str]) -> st.SearchStrategy[str]:
    """FROM items with columns of the names a, b, s, n."""
    given = ", ".join(f"{v} AS {k}" for k, v in columns.items())
    return st.sampled_from(
        [
            *["t", "u"],
            f"(SELECT {given} FROM t WHERE s <> 'x') AS x",
            "(SELECT * FROM t UNION ALL SELECT b, a, upper(s), n + 1 FROM u) AS x",
            "(SELECT a, a AS b, text AS s, n FROM few) AS x",
            "(SELECT c AS a, 1 AS b, s, 0::numeric AS n FROM sums) AS x",
            "(SELECT * FROM t UNION ALL VALUES (1, 2, 'v', 1.5), (NULL, NULL, NULL, NULL)) AS x",
            "(SELECT e AS a, b, s, n FROM t, unnest(ARRAY[a, b]) AS e) AS x",
            "(SELECT a, e AS b, s, n FROM few AS y (a, s, n) LEFT JOIN unnest(ARRAY[a]) AS e ON e > 0) AS x",
            "(SELECT g AS a, b, s, n FROM t CROSS JOIN generate_series(1, 2) AS g WHERE g <> b) AS x",
        ]
    )


OUTPUTS = st.sampled_from(
    [
        *["a", "b", "s", "n", "1", "NULL::text", "a + b", "-a", "upper(s)", "s || 'z'", "length(s)"],
        *["coalesce(a, b, 7)", "CASE WHEN a > 0 THEN s ELSE b::text END", "n * 2", "a::numeric + n"],
        *["a IS NULL", "a = b", "s IN ('x', 'ß')", "nullif(a, b)", "(a::float8)::text", "abs(a)"],
    ]
)
CONDITIONS = st.sampled_from(
    [
        *["a > 0", "a <> b", "s = 'x'", "s LIKE 'X%'", "a IS NULL", "b IS NOT NULL", "n > 0", "a + b > 1"],
        *["s IN ('x', 'Xy')", "a > 0 AND s <> 'x'", "a = 1 OR b = 1", "NOT (a > 0)", "upper(s) = 'X'"],
        *["a <> 0 AND 6 / a > 2", "coalesce(a, 0) = 0", "a = -1", "false", "NULL"],
    ]
)


@st.composite
def queries(draw: st.DrawFn) -> str:
    def select() -> str:
        outputs = draw(st.lists(OUTPUTS, min_size=1, max_size=3))
        source = draw(sources({"a": "b", "b": "a", "s": "lower(s)", "n": "n"}))
        where = draw(st.one_of(st.none(), CONDITIONS))
        return f"SELECT {', '.join(outputs)} FROM {source}" + (f" WHERE {where}" if where else "")

    whole = select()
    if draw(st.integers(0, 3)) == 0:
        source = draw(st.sampled_from(["t", "u"]))
        outputs = ", ".join(["a", "b", "s"][: draw(st.integers(1, 3))])
        where = draw(CONDITIONS)
        whole = f"SELECT {outputs} FROM {source} UNION ALL SELECT {outputs} FROM t WHERE {where}"
    elif draw(st.integers(0, 4)) == 0:
        whole += " ORDER BY 1"
    return whole


@given(t=histories(), u=histories(), asked=st.lists(queries(), min_size=3, max_size=6), cuts=st.data())
@settings(max_examples=4, deadline=None)
def test_changes_are_the_difference_of_answers(
    spark: SparkHost, t: list[Update], u: list[Update], asked: list[str], cuts: st.DataObject
) -> None:
    evaluations = Evaluations(spark)
    given_ = {"t": t, "u": u}
    followers: list[tuple[str, BoundQuery, LinearFollower]] = []
    for sql in asked:
        bound = NAMES.bind(sql)
        spans = {
            name: Told(DESC, history, [*sorted(cuts.draw(st.sets(st.integers(1, LAST)))), LAST + 1])
            for name, history in given_.items()
        }
        followers.append((sql, bound, follower(evaluations, bound, spans)))
    with ThreadPoolExecutor(len(followers)) as pool:
        said = list(pool.map(lambda f: told(f[2], LAST + 1), followers))
    for (sql, bound, _), changes in zip(followers, said, strict=True):
        before = answer(spark, bound, given_, 0)
        for at in range(1, LAST + 1):
            now = answer(spark, bound, given_, at)
            difference = {row: now[row] - before[row] for row in now | before if now[row] != before[row]}
            assert changes.get(at, {}) == difference, (sql, at)
            before = now


# -- errors -----------------------------------------------------------------------------------------------


def test_an_error_comes_at_its_time_with_the_text_of_select(spark: SparkHost) -> None:
    history: list[Update] = [((a, 1, "x", None), 10 * n, 1) for n, a in enumerate([5, 2, 0, 1], start=1)]
    for sql in (
        "SELECT 10 / a FROM t",
        "SELECT a FROM t WHERE 10 / a > 0",
        "SELECT s::int FROM t WHERE a = 0",
    ):
        bound = NAMES.bind(sql)
        with pytest.raises(TidemillError) as selected:
            answer(spark, bound, {"t": history}, 30)
        follow = follower(Evaluations(spark), bound, {"t": Told(DESC, history, [41])})
        first = follow.advance()
        assert first is not None and (first.lower, first.upper) == (0, 30)
        assert first.updates.num_rows == (0 if "s::int" in sql else 2)
        for _ in range(2):
            with pytest.raises(TidemillError) as caught:
                follow.advance()
            assert (caught.value.primary, caught.value.sqlstate) == (
                selected.value.primary,
                selected.value.sqlstate,
            )


def test_an_error_in_the_first_change(spark: SparkHost) -> None:
    bound = NAMES.bind("SELECT 10 / a FROM t")
    follow = follower(Evaluations(spark), bound, {"t": Told(DESC, [((0, 1, "x", None), 0, 1)], [5])})
    with pytest.raises(TidemillError, match="division by zero"):
        follow.advance()


def test_rows_that_the_filter_leaves_out_do_not_fail(spark: SparkHost) -> None:
    history: list[Update] = [
        ((0, 1, "x", None), 1, 1),
        ((None, 0, "y", None), 1, 1),
        ((2, 1, "z", None), 1, 1),
    ]
    for sql in ("SELECT 10 / a FROM t WHERE a > 0", "SELECT 10 / a FROM t WHERE a <> 0 AND 10 / a > 1"):
        follow = follower(Evaluations(spark), NAMES.bind(sql), {"t": Told(DESC, history, [2])})
        assert told(follow, 2) == {1: Counter({(5,): 1})}


def test_one_that_fails_hurts_no_other(spark: SparkHost) -> None:
    changes = table([((a, 1, "x", None), 1, 1) for a in range(4)])
    asked = [
        "SELECT a FROM t",
        "SELECT 1 / a FROM t",
        "SELECT a FROM t WHERE a > 1",
        "SELECT 1 / a FROM t WHERE a > 2",
    ]
    asked += [
        "SELECT a FROM t WHERE s LIKE 'x'",
        "SELECT a FROM t WHERE 1 / a > 0",
        "SELECT s FROM t WHERE a + 1 = 2",
    ]
    pieces: list[ChangePiece] = []
    for sql in asked:
        bound = NAMES.bind(sql)
        (branch,) = linearity(bound).branches
        pieces.append(ChangePiece(Formula(branch, bound.columns), changes))
    evaluate(spark, pieces)
    errors = [None if p.error is None else p.error.primary for p in pieces]
    assert errors == [None, "division by zero", None, None, None, "division by zero", None]
    assert [p.result.num_rows for p in pieces] == [4, 0, 2, 1, 4, 0, 1]


def test_an_input_that_holds_an_error(spark: SparkHost) -> None:
    bound = NAMES.bind("SELECT a FROM t UNION ALL SELECT a FROM u")
    given_: list[Update] = [((1, 1, "x", None), 3, 1), ((2, 1, "x", None), 7, 1)]
    inputs = {"t": Told(DESC, given_, [10], (5, "decoding failed")), "u": Told(DESC, given_, [4, 10])}
    follow = follower(Evaluations(spark), bound, inputs)
    first = follow.advance()
    assert first is not None and (first.upper, first.error) == (4, None)
    assert first.updates.column(DIFF_COLUMN).to_pylist() == [2]
    second = follow.advance()
    assert second is not None and (second.upper, second.error) == (10, (5, "decoding failed"))
    assert second.updates.num_rows == 0


TYPED: dict[str, list[str | None]] = {
    "boolean": ["t", None],
    "smallint": ["-3", None],
    "integer": ["4", "5"],
    "bigint": ["9000000000", None],
    "uint4": ["4000000000", None],
    "real": ["1.5", "NaN"],
    "double precision": ["-0.25", "Infinity"],
    "numeric(12,2)": ["12.50", None],
    "numeric": ["-1.000000000000000001", None],
    "text": ["ß", ""],
    "character varying(5)": ["abc", None],
    "bytea": ["\\x00ff", None],
    "date": ["2024-02-29", "1800-01-01"],
    "time": ["12:34:56.789", None],
    "timestamp": ["2024-02-29 12:00:00.5", None],
    "timestamp with time zone": ["1900-01-01 00:00:00+00", None],
    "interval": ["1 mon 2 days 03:04:05", None],
    "uuid": ["123e4567-e89b-12d3-a456-426614174000", None],
    "jsonb": ['{"a": [1.50, null]}', None],
    "integer[]": ["{1,NULL,3}", "{}"],
    "text[]": ['{"a b",NULL}', None],
}


def test_every_type_comes_through(spark: SparkHost) -> None:
    types = [parse_type(name) for name in TYPED]
    desc = RelationDesc(tuple(Column(f"x{n}", t) for n, t in enumerate(types)))
    values = [decode_text(pa.array(v, pa.string()), t) for v, t in zip(TYPED.values(), types, strict=True)]
    given_ = pa.table(values, names=[c.name for c in desc.columns])
    for where in ("x2 > 0", "x2 + 0 > 0"):
        bound = Names({"t": desc}).bind(f"SELECT * FROM t WHERE {where}")
        (branch,) = linearity(bound).branches
        piece = ChangePiece(Formula(branch, bound.columns), given_)
        evaluate(spark, [piece])
        assert piece.error is None
        found = piece.result.drop_columns([ROW])
        assert found.schema.types == given_.schema.types
        for column, expected in zip(found.columns, given_.columns, strict=True):
            assert column.combine_chunks().equals(expected.combine_chunks()) or str(
                column.to_pylist()
            ) == str(expected.to_pylist())


# -- together ---------------------------------------------------------------------------------------------


def test_many_queries_are_one_job(spark: SparkHost) -> None:
    changes = table([((a % 7, a % 3, f"s{a % 5}", None), 1 + a % 2, 1) for a in range(200)])
    for condition, expected in (("a = {n} AND b > 0", 1), ("a + b = {n}", 1)):
        pieces: list[ChangePiece] = []
        for n in range(30):
            bound = NAMES.bind(f"SELECT s, {n} FROM t WHERE {condition.format(n=n % 8)}")
            (branch,) = linearity(bound).branches
            pieces.append(ChangePiece(Formula(branch, bound.columns), changes))
        jobs = spark.metrics.jobs
        evaluate(spark, pieces)
        assert spark.metrics.jobs - jobs == expected
        for n, piece in enumerate(pieces):
            assert piece.error is None
            assert set(piece.result.column(1).to_pylist()) <= {n}
        assert sum(p.result.num_rows for p in pieces[:8]) == sum(p.result.num_rows for p in pieces[8:16])


def test_those_who_ask_at_once_share_jobs(spark: SparkHost) -> None:
    """However they come: every one gets its own, and the jobs are no more than those who ask."""
    evaluations = Evaluations(spark)
    followers: list[LinearFollower] = []
    history: list[Update] = [((a % 4, 1, f"s{a}", None), 1 + a % 3, 1) for a in range(40)]
    for n in range(24):
        bound = NAMES.bind(f"SELECT s, {n} FROM t WHERE a = {n % 5}")
        followers.append(follower(evaluations, bound, {"t": Told(DESC, history, [2, 3, 4])}))
    with ThreadPoolExecutor(len(followers)) as pool:
        said = list(pool.map(lambda f: told(f, 4), followers))
    assert evaluations.jobs <= 3 * len(followers)
    for n, changes in enumerate(said):
        expected: dict[int, Counter[Any]] = {}
        for (a, _, text, _), time, diff in history:
            if a == n % 5:
                expected.setdefault(time, Counter())[(text, n)] += diff
        assert changes == expected
    for each in followers:
        each.close()


def test_results_of_more_cells_than_fit_one_job(spark: SparkHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemill.query.linear_changes.MAX_CELLS", 100)
    monkeypatch.setattr("tidemill.query.linear_changes.FOLDED_CELLS", 10)
    history: list[Update] = [((a, 1, "x", None), 1, 1) for a in range(90)]
    for sql in ("SELECT a, s FROM t WHERE a >= 5", "SELECT a, s FROM t WHERE a + 1 >= 6"):
        follow = follower(Evaluations(spark), NAMES.bind(sql), {"t": Told(DESC, history, [2])})
        assert told(follow, 2) == {1: Counter({(a, "x"): 1 for a in range(5, 90)})}


def test_an_input_that_lags_holds_back_the_rest(spark: SparkHost) -> None:
    bound = NAMES.bind("SELECT a FROM t UNION ALL SELECT a + 10 FROM u")
    t: list[Update] = [((n, 1, "x", None), n, 1) for n in (1, 2, 3)]
    inputs = {"t": Told(DESC, t, [4]), "u": Told(DESC, t, [1, 3, 4])}
    follow = follower(Evaluations(spark), bound, inputs)
    uppers: list[int] = []
    found: list[tuple[int, int]] = []
    while follow.frontier < 4:
        changes = follow.advance()
        assert changes is not None
        uppers.append(changes.upper)
        found += zip(changes.updates[0].to_pylist(), changes.updates[1].to_pylist(), strict=True)
    assert uppers == [1, 3, 4]
    assert sorted(found) == [(1, 1), (2, 2), (3, 3), (11, 1), (12, 2), (13, 3)]
    assert follow.advance() is None
    follow.close()
    assert all(i.closed for i in inputs.values())
