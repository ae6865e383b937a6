"""Queries that are local to keys: at every time the changes so far are what SELECT answers there."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from key_index import ListedIndex
from told_spans import Told, Update, updates_table

from support.bound import Names
from tidemill.query.multiset import add_up, expand
from tidemill.query.read import ConstantInput
from tidemill.query.run import collect
from tidemill.query.spark import SparkHost
from tidemill.sql.bind import BoundQuery
from tidemill.sql.bind.incremental import KeyedStage, keyed_stages
from tidemill.subscribe.key_local import KeyIndex, KeyLocalFollower, RunningStage
from tidemill.subscribe.stage_query import running_stages
from tidemill.types.arrow import DIFF_COLUMN, TIME_COLUMN, arrow_schema
from tidemill.types.model import INT4, NUMERIC, TEXT, Column, RelationDesc

pytestmark = pytest.mark.spark

DESC = RelationDesc((Column("a", INT4), Column("b", INT4), Column("s", TEXT), Column("n", NUMERIC)))
NAMES = Names(
    {"t": DESC, "u": DESC, "v": DESC},
    {"few": "SELECT a, b, s FROM t WHERE b > 0", "counts": "SELECT a, count(*) AS c FROM t GROUP BY a"},
)
SCHEMA = arrow_schema(DESC)
LAST = 5

_VALUES = (
    [None, 0, 1, 1, 2],
    [None, 0, 1, 3],
    [None, "", "x", "y"],
    [None, "0", "1.5", "-2.25"],
)


def history(dice: random.Random) -> list[Update]:
    """Inserts, updates and deletes of rows that may be there more than once; those at 0 are there first."""
    here: Counter[tuple[Any, ...]] = Counter()
    updates: list[Update] = []
    for time in range(LAST + 1):
        for _ in range(dice.choice([0, 1, 2, 6, 12])):
            there = sorted((+here).elements(), key=str)
            if there and dice.random() < 0.5:
                gone = dice.choice(there)
                here[gone] -= 1
                updates.append((gone, time, -1))
                if dice.random() < 0.5:
                    continue
            row, copies = tuple(map(dice.choice, _VALUES)), dice.choice([1, 1, 2])
            here[row] += copies
            updates.append((row, time, copies))
    return updates


Histories = Mapping[str, Sequence[Update]]


def at_time(updates: Sequence[Update], at: int) -> pa.Table:
    return add_up([updates_table([u for u in updates if u[1] <= at], DESC).drop_columns([TIME_COLUMN])])


def select(spark: SparkHost, bound: BoundQuery, text: str, found: Histories, at: int) -> pa.Table:
    inputs = {
        placeholder: ConstantInput(expand(at_time(found[relation], at), SCHEMA.names))
        for placeholder, relation in bound.inputs.items()
        if placeholder in text
    }
    return collect(spark, text, inputs, bound.columns)


def rows_in_order(found: pa.Table) -> list[str]:
    return [str(row) for row in zip(*(column.to_pylist() for column in found.columns), strict=True)]


def rows(found: pa.Table) -> Counter[str]:
    return Counter(rows_in_order(found))


def follower(
    spark: SparkHost, bound: BoundQuery, found: Histories, uppers: Sequence[int], from_: int = 1
) -> KeyLocalFollower:
    stages = keyed_stages(bound)
    by_name = {s.stage.name: s for s in stages}
    used = {p: sorted(bound.used[p]) for p in bound.inputs}

    def open_index(source: str, key: tuple[str, ...], schema: pa.Schema) -> KeyIndex:
        if source in by_name:
            first = stage_rows(by_name[source])
        else:
            first = add_up(
                [at_time(found[bound.inputs[source]], from_ - 1).select([*schema.names, DIFF_COLUMN])]
            )
        return ListedIndex(first, key, from_)

    def stage_rows(keyed: KeyedStage) -> pa.Table:
        inputs = {
            p: ConstantInput(expand(at_time(found[bound.inputs[p]], from_ - 1), SCHEMA.names))
            for p in keyed.reads
        }
        made = collect(spark, keyed.whole, inputs, keyed.columns)
        return add_up([made.append_column(DIFF_COLUMN, pa.array(np.ones(made.num_rows, np.int64)))])

    relations = {p: pa.schema([SCHEMA.field(n) for n in names]) for p, names in used.items()}

    def no_whole(keyed: KeyedStage, at: int) -> pa.Table:
        raise AssertionError

    def open_stages(_at: int) -> Sequence[RunningStage]:
        return running_stages(spark, stages, relations, open_index, no_whole)

    inputs = {p: Told(DESC, [u for u in found[r] if u[1] >= from_], uppers) for p, r in bound.inputs.items()}
    for each in inputs.values():
        each.frontier = from_
    names = [f"c{i}" for i in range(len(bound.columns))]
    return KeyLocalFollower(open_stages, inputs, used, from_, names)


def check(spark: SparkHost, query: str, seed: int) -> None:
    dice = random.Random(f"{query} {seed}")
    found = {name: history(dice) for name in ("t", "u", "v")}
    uppers = [*sorted(dice.sample(range(2, LAST + 1), dice.randint(0, 2))), LAST + 1]
    bound = NAMES.bind(query)
    follow = follower(spark, bound, found, uppers)
    at_each: dict[int, Counter[str]] = {}
    while follow.frontier <= LAST:
        lower = follow.frontier
        changes = follow.advance()
        assert changes is not None and changes.lower == lower and changes.upper == follow.frontier
        *_, times, diffs = (c.to_pylist() for c in changes.updates.columns)
        told = rows_in_order(changes.updates.drop_columns([TIME_COLUMN, DIFF_COLUMN]))
        for row, time, diff in zip(told, times, diffs, strict=True):
            assert changes.lower <= time < changes.upper and row not in at_each.setdefault(time, Counter())
            at_each[time][row] = diff
    text = bound.sql()
    answer = rows(select(spark, bound, text, found, 0))
    compared = {dice.randint(1, LAST - 1), LAST}
    for at in range(1, LAST + 1):
        for row, diff in at_each.get(at, Counter[str]()).items():
            answer[row] += diff
        if at in compared:
            expected = rows(select(spark, bound, text, found, at))
            assert {r: n for r, n in answer.items() if n} == expected, f"at {at} of {found}, in {uppers}"


QUERIES = """
SELECT a, count(*), sum(b), avg(n), max(s), count(DISTINCT b) FROM t GROUP BY a;
SELECT s, min(n) FILTER (WHERE b > 0), array_agg(b ORDER BY b DESC) FROM t GROUP BY a, s HAVING sum(a) >
  1;
SELECT DISTINCT a, s FROM t WHERE b IS NOT NULL;
SELECT a, b, count(*), grouping(b, s), sum(n) FROM t GROUP BY a, ROLLUP (b, s);
SELECT a, b, rank() OVER w, sum(n) OVER (PARTITION BY a), count(*) OVER (PARTITION BY s, a ORDER BY b)
  FROM t WINDOW w AS (PARTITION BY a ORDER BY b);
SELECT * FROM (SELECT a, b, s, n, row_number() OVER (PARTITION BY a ORDER BY b DESC, s, n) AS r FROM t) x
  WHERE r <= 2;
SELECT DISTINCT ON (a) a, b, s, n FROM t ORDER BY a, n DESC, b, s;
SELECT t.b, t.s, u.b FROM t JOIN u ON t.a = u.a;
SELECT t.b, u.b, u.s FROM t LEFT JOIN u ON t.a = u.a AND t.s = u.s AND u.b > t.b;
SELECT t.b, t.n, u.s FROM t RIGHT JOIN u USING (a) WHERE u.n IS NOT NULL;
SELECT a, t.b, u.b FROM t FULL JOIN u USING (a);
SELECT t.a, u.b FROM t, u WHERE t.a = u.b AND t.s <> u.s;
SELECT x.b, y.n FROM t x LEFT JOIN t y ON x.a = y.b;
SELECT a, b FROM t EXCEPT ALL SELECT a, b FROM u;
SELECT a FROM t EXCEPT SELECT a FROM u;
SELECT a, s FROM t INTERSECT ALL SELECT a, s FROM u;
SELECT a, s FROM t INTERSECT SELECT a, s FROM u;
SELECT a, s FROM t UNION SELECT b, s FROM u;
SELECT a, b FROM t WHERE a IN (SELECT b FROM u WHERE n > 0);
SELECT a, b FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.a = t.a AND u.b > t.b);
SELECT a, b FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.a = t.a);
SELECT (SELECT count(*) FROM u WHERE u.a = t.a), (SELECT max(n) FROM v WHERE v.b = 1 AND v.a = t.a) FROM
  t;
SELECT t.a, z.b, z.s FROM t, LATERAL (SELECT b, s FROM u WHERE u.a = t.a ORDER BY b, s LIMIT 2) z;
SELECT t.b, z.c FROM t LEFT JOIN LATERAL (SELECT count(*), sum(b) AS c FROM u WHERE u.a = t.a) z ON true;
SELECT t.b, count(*), sum(u.b) FROM t JOIN u ON t.a = u.a GROUP BY t.b;
SELECT t.a, count(u.b) FROM t LEFT JOIN u ON t.a = u.a GROUP BY t.a;
SELECT t.b, u.b, v.s FROM t JOIN u ON t.a = u.a LEFT JOIN v ON u.b = v.b;
SELECT t.b, u.b, v.n FROM t JOIN u ON t.a = u.a JOIN v ON u.a = v.a;
SELECT c, count(*) FROM counts GROUP BY c;
SELECT a % 2, s || 'z', sum(b + 1) FROM t GROUP BY a % 2, 2;
SELECT few.s, counts.c FROM few JOIN counts ON few.a + 1 = counts.a;
SELECT a, count(*) FROM t GROUP BY a UNION ALL SELECT b, a FROM u WHERE s = 'x';
SELECT e, count(*) FROM (SELECT a, unnest(ARRAY[a, b]) AS e FROM t) x GROUP BY e;
SELECT x.a, x.c, y.c FROM counts x JOIN counts y ON x.a = y.c;
SELECT a, max(c) FROM (SELECT a, b, count(*) AS c FROM t GROUP BY a, b) x GROUP BY a;
"""


def test_zz_profile(spark: SparkHost) -> None:
    import time, traceback
    try:
        _profile(spark)
    except BaseException:
        with open("/tmp/w/inc21_fail.log", "a") as f:
            f.write(traceback.format_exc())


def _profile(spark: SparkHost) -> None:
    import time, cProfile, pstats, io
    n = 1_000_000
    groups = n // 100
    rng = np.random.default_rng(1)
    cols = {"a": pa.array(rng.integers(0, groups, n), pa.int32()), "b": pa.array(rng.integers(0, 1000, n), pa.int32()),
            "s": pa.array(np.repeat("x", n)), "n": pa.array(rng.integers(0, 1000, n)).cast(SCHEMA.field("n").type)}
    from tidemill.arrangements import Arrangements, key_hash
    bound = NAMES.bind("SELECT a, count(*), sum(b), avg(n) FROM t GROUP BY a")
    used = sorted(bound.used["tm_in_0"])
    first = pa.table({k: cols[k] for k in used}).append_column(DIFF_COLUMN, pa.array(np.ones(n, np.int64)))
    arr = Arrangements("/tmp/w/inc21_arr")
    stages = keyed_stages(bound)
    def open_index(source, key, schema):
        return arr.private("p", pa.schema([SCHEMA.field(x) for x in used]), 1, lambda: [(first, key_hash(first, key))])
    def open_stages(at):
        return running_stages(spark, stages, {"tm_in_0": pa.schema([SCHEMA.field(x) for x in used])}, open_index, lambda *_: None)
    class In:
        frontier = 1
        relation = "t"
        t = 1
        pending = None
        def advance(self):
            p, self.pending = self.pending, None
            if p is not None: self.frontier = p.upper
            return p
        def close(self): pass
    from tidemill.subscribe.changes import CollectionChanges
    inp = In()
    f = KeyLocalFollower(open_stages, {"tm_in_0": inp}, {"tm_in_0": used}, 1, ["c0", "c1", "c2", "c3"])
    out = []
    prof = cProfile.Profile()
    for t in range(1, 31):
        m = 1000
        d = {"a": pa.array(rng.integers(0, groups, m), pa.int32()), "b": pa.array(rng.integers(0, 1000, m), pa.int32()),
             "n": pa.array(rng.integers(0, 1000, m)).cast(SCHEMA.field("n").type)}
        tab = pa.table({k: d[k] for k in used}).append_column(TIME_COLUMN, pa.array(np.full(m, t))).append_column(DIFF_COLUMN, pa.array(np.ones(m, np.int64)))
        inp.pending = CollectionChanges(tab, t, t + 1)
        t0 = time.time()
        if t > 20: prof.enable()
        c = f.advance()
        if t > 20: prof.disable()
        out.append(time.time() - t0)
    s = io.StringIO(); pstats.Stats(prof, stream=s).sort_stats("cumulative").print_stats(40)
    with open("/tmp/w/inc21_fail.log", "a") as fh:
        fh.write("TICKS " + " ".join(f"{x*1000:.0f}" for x in out) + f" rows {c.updates.num_rows}\n" + s.getvalue())
