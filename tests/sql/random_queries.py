"""Random queries from a seed: joins, groups, windows, set operations, subqueries, CTEs, orders and limits,
over the tables g and h.

A query is made so that it has one answer: what depends on an order is given one that is total, and floats
are not added up. Its expressions are simple; `random_expressions` has the others."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

TABLES_SQL = """CREATE TABLE g (id int, k int, s text, x numeric(8,2), d date, b boolean, a int[]);
INSERT INTO g VALUES
 (1, 1, 'a', 1.50, '2020-02-29', true, '{1,2}'), (2, 1, 'b', -2.25, '1999-12-31', false, '{}'),
 (3, 2, 'a', NULL, NULL, NULL, '{NULL,3}'), (4, NULL, '', 0.00, '2020-02-29', true, NULL),
 (5, 3, NULL, 99999.99, 'infinity', false, '{3,3,1}'), (6, 2, 'É', 1.50, '0044-03-15 BC', true, '{7}'),
 (7, NULL, NULL, NULL, NULL, NULL, NULL), (8, -1, 'ab', 10.00, '2024-01-31', false, '{2}');
CREATE TABLE h (id int, k int, s text, y bigint, d date);
INSERT INTO h VALUES
 (1, 1, 'a', 10, '2020-02-29'), (2, 2, 'b', NULL, NULL), (3, 2, 'a', -5, '1999-12-31'),
 (4, NULL, 'z', 9007199254740993, '2024-01-31'), (5, 5, NULL, 10, 'infinity'), (6, 1, '', 0, '2020-03-01');
"""
QUERY_TABLES = ("g", "h")

INT, BIG, TEXT, NUM, DATE, BOOL, INTS = "int", "bigint", "text", "numeric", "date", "boolean", "int[]"
_COLUMNS = {
    "g": {"id": INT, "k": INT, "s": TEXT, "x": NUM, "d": DATE, "b": BOOL, "a": INTS},
    "h": {"id": INT, "k": INT, "s": TEXT, "y": BIG, "d": DATE},
}
_CONSTANTS = {
    INT: "7",
    BIG: "8::bigint",
    TEXT: "'z'::text",
    NUM: "2.50::numeric(8,2)",
    DATE: "date '2001-01-01'",
    BOOL: "true",
    INTS: "'{1,NULL}'::int[]",
}
_SORTED = (INT, BIG, TEXT, NUM, DATE, BOOL)


@dataclass(frozen=True, slots=True)
class Source:
    """What stands in FROM, its columns as they are named in expressions, and those that tell rows apart."""

    sql: str
    columns: dict[str, str]
    keys: tuple[str, ...] = ()


class Queries:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self._aliases = 0

    def query(self) -> tuple[str, bool]:
        """A query, and whether the order of its rows is its own."""
        rng = self.rng
        made, types = self._body(2)
        if rng.random() < 0.2:
            made = f"WITH c AS ({made}) SELECT * FROM c"
            if rng.random() < 0.5:
                made += f" WHERE EXISTS (SELECT 1 FROM c AS z WHERE z.{'c0'} IS NOT DISTINCT FROM c.c0)"
        if rng.random() < 0.5 or not all(t in _SORTED for t in types):
            return made, False
        made += " ORDER BY " + ", ".join(f"{i + 1}{self._direction()}" for i in range(len(types)))
        if rng.random() < 0.6:
            made += rng.choice(
                (" LIMIT 3", " LIMIT 2 OFFSET 1", " OFFSET 2", " LIMIT 0", " FETCH FIRST 4 ROWS ONLY")
            )
        return made, True

    # --- selects

    def _body(self, depth: int) -> tuple[str, list[str]]:
        makers = [
            self._plain,
            self._plain,
            self._distinct_on,
            self._grouped,
            self._grouped,
            self._sets,
            self._windowed,
        ]
        if depth > 0:
            makers += [self._union, self._union]
        return self.rng.choice(makers)(depth)

    def _plain(self, depth: int) -> tuple[str, list[str]]:
        source = self._source(depth)
        types = self._some_types()
        outputs = [f"{self._value(source, t)} AS c{i}" for i, t in enumerate(types)]
        if self.rng.random() < 0.25:
            outputs.append(f"{self._subvalue(source)} AS c{len(types)}")
            types.append(BIG)
        distinct = "DISTINCT " if self.rng.random() < 0.2 else ""
        return f"SELECT {distinct}{', '.join(outputs)} FROM {source.sql}{self._where(source, depth)}", types

    def _distinct_on(self, depth: int) -> tuple[str, list[str]]:
        source = self._keyed(depth)
        on = self._value(source, self.rng.choice((INT, TEXT)))
        types = self._some_types()
        outputs = ", ".join(f"{self._value(source, t)} AS c{i}" for i, t in enumerate(types))
        order = ", ".join(f"{k}{self._direction()}" for k in source.keys)
        inner = f"SELECT DISTINCT ON ({on}) {outputs} FROM {source.sql}{self._where(source, depth)}"
        return f"SELECT * FROM ({inner} ORDER BY {on}{self._direction()}, {order}) AS o", types

    def _grouped(self, depth: int) -> tuple[str, list[str]]:
        source = self._keyed(depth)
        types = self._some_types(_SORTED)[:2] if self.rng.random() < 0.8 else []
        keys = [self._value(source, t) for t in types]
        calls = [self._aggregate(source) for _ in range(self.rng.randrange(1, 4))]
        outputs = [f"{e} AS c{i}" for i, e in enumerate([*keys, *(c for c, _ in calls)])]
        sql = f"SELECT {', '.join(outputs)} FROM {source.sql}{self._where(source, depth)}"
        if keys:
            sql += " GROUP BY " + ", ".join(str(i + 1) for i in range(len(keys)))
        if self.rng.random() < 0.3:
            call, _ = self._aggregate(source, (INT, BIG))
            op = self.rng.choice((">", "<=", "IS DISTINCT FROM"))
            sql += f" HAVING {call} {op} {self.rng.randrange(-1, 4)}"
        return sql, [*types, *(t for _, t in calls)]

    def _sets(self, depth: int) -> tuple[str, list[str]]:
        source = self._keyed(depth)
        names = [n for n, t in source.columns.items() if t in _SORTED]
        if len(names) < 2:
            return self._plain(depth)
        a, b = self.rng.sample(names, 2)
        call, t = self._aggregate(source)
        form = self.rng.choice(("GROUPING SETS (({a}), ({b}), ())", "ROLLUP ({a}, {b})", "CUBE ({a}, {b})",
                                "GROUPING SETS (({a}, {b}), ({a}))", "{a}, ROLLUP ({b})"))  # fmt: skip
        sql = f"SELECT {a} AS c0, {b} AS c1, grouping({a}, {b}) AS c2, {call} AS c3 FROM {source.sql}"
        sql += f"{self._where(source, depth)} GROUP BY {form.format(a=a, b=b)}"
        return sql, [source.columns[a], source.columns[b], INT, t]

    def _union(self, depth: int) -> tuple[str, list[str]]:
        types = self._some_types(_SORTED)
        sides: list[str] = []
        for _ in range(2):
            source = self._source(depth - 1)
            outputs = ", ".join(f"{self._value(source, t)} AS c{i}" for i, t in enumerate(types))
            sides.append(f"SELECT {outputs} FROM {source.sql}{self._where(source, depth - 1)}")
        word = self.rng.choice(("UNION", "UNION ALL", "INTERSECT", "EXCEPT", "INTERSECT ALL", "EXCEPT ALL"))
        return f"SELECT * FROM ({sides[0]} {word} {sides[1]}) AS u", types

    def _windowed(self, depth: int) -> tuple[str, list[str]]:
        source = self._keyed(depth)
        types = self._some_types(_SORTED)[:1]
        outputs = [self._value(source, t) for t in types]
        outputs += source.keys
        types += [INT] * len(source.keys)
        for _ in range(self.rng.randrange(1, 3)):
            call, t = self._window(source)
            outputs.append(call)
            types.append(t)
        named = ", ".join(f"{e} AS c{i}" for i, e in enumerate(outputs))
        return f"SELECT {named} FROM {source.sql}{self._where(source, depth)}", types

    # --- sources

    def _alias(self) -> str:
        self._aliases += 1
        return f"t{self._aliases}"

    def _table(self) -> Source:
        name, alias = self.rng.choice(("g", "h")), self._alias()
        columns = {f"{alias}.{c}": t for c, t in _COLUMNS[name].items()}
        return Source(f"{name} AS {alias}", columns, (f"{alias}.id",))

    def _keyed(self, depth: int) -> Source:
        """A source whose rows a key tells apart."""
        one = self._table()
        if depth <= 0 or self.rng.random() < 0.6:
            return one
        two = self._table()
        kind = self.rng.choice(("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"))
        on = self._join_condition(one, two, plain=kind == "FULL JOIN")
        return Source(f"{one.sql} {kind} {two.sql} ON {on}", one.columns | two.columns, one.keys + two.keys)

    def _source(self, depth: int) -> Source:
        rng = self.rng
        kind = rng.randrange(9)
        if depth <= 0 or kind < 3:
            return self._keyed(depth)
        if kind == 3:
            left, right = rng.choice(("g", "h")), rng.choice(("g", "h"))
            a, b = self._alias(), self._alias()
            using = rng.choice(("id", "k", "k, s", "s"))
            join = rng.choice(("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"))
            columns = {n: _COLUMNS["g"][n] for n in using.split(", ")}
            columns |= {f"{a}.id": INT, f"{b}.d": DATE}
            return Source(f"{left} AS {a} {join} {right} AS {b} USING ({using})", columns)
        if kind == 4:
            outer, alias = self._table(), self._alias()
            inner = self._table()
            key = next(iter(inner.columns)).split(".")[0]
            condition = f"{key}.k IS NOT DISTINCT FROM {outer.keys[0].split('.')[0]}.k"
            sub = f"SELECT {key}.id AS i, {key}.s AS s FROM {inner.sql} WHERE {condition}"
            sub += f" ORDER BY {key}.id LIMIT 2"
            join = rng.choice(("CROSS JOIN LATERAL ({}) AS {}", "LEFT JOIN LATERAL ({}) AS {} ON true"))
            columns = outer.columns | {f"{alias}.i": INT, f"{alias}.s": TEXT}
            return Source(f"{outer.sql} {join.format(sub, alias)}", columns)
        if kind == 5:
            alias = self._alias()
            sql, types = self._body(depth - 1)
            return Source(f"({sql}) AS {alias}", {f"{alias}.c{i}": t for i, t in enumerate(types)})
        if kind == 6:
            alias = self._alias()
            rows = ", ".join(
                f"({rng.choice(('1', '2', 'NULL'))}, {rng.choice(_TEXTS)}, {rng.choice(('1.5', '2.50'))})"
                for _ in range(3)
            )
            columns = {f"{alias}.p": INT, f"{alias}.q": TEXT}
            return Source(f"(VALUES {rows}, (7, 'v', 1.00)) AS {alias}(p, q, r)", columns)
        if kind == 7:
            alias = self._alias()
            bounds = rng.choice(("1, 5", "0, 10, 3", "3, 1", "5, 1, -2"))
            return Source(f"generate_series({bounds}) AS {alias}(n)", {f"{alias}.n": INT}, (f"{alias}.n",))
        alias, base = self._alias(), self._alias()
        columns = {f"{base}.{c}": t for c, t in _COLUMNS["g"].items()} | {
            f"{alias}.e": INT,
            f"{alias}.o": BIG,
        }
        return Source(f"g AS {base}, unnest({base}.a) WITH ORDINALITY AS {alias}(e, o)", columns)

    def _join_condition(self, one: Source, two: Source, *, plain: bool) -> str:
        rng = self.rng
        pairs = [
            (a, b) for a, t in one.columns.items() for b, u in two.columns.items() if t == u and t in _SORTED
        ]
        a, b = rng.choice(pairs)
        found = f"{a} = {b}"
        if not plain and rng.random() < 0.4:
            a, b = rng.choice(pairs)
            found += rng.choice((f" AND {a} <> {b}", f" OR {a} < {b}", f" AND {a} IS NOT NULL"))
        return found

    def _where(self, source: Source, depth: int) -> str:
        return f" WHERE {self._condition(source, depth)}" if self.rng.random() < 0.5 else ""

    # --- expressions

    def _some_types(self, among: Sequence[str] = (*_SORTED, INTS)) -> list[str]:
        return [self.rng.choice(among) for _ in range(self.rng.randrange(1, 4))]

    def _direction(self) -> str:
        return self.rng.choice(("", "", " DESC", " ASC")) + self.rng.choice(
            ("", "", " NULLS FIRST", " NULLS LAST")
        )

    def _column(self, source: Source, t: str) -> str | None:
        found = [n for n, u in source.columns.items() if u == t]
        return self.rng.choice(found) if found else None

    def _value(self, source: Source, t: str) -> str:
        rng = self.rng
        name = self._column(source, t)
        if name is None:
            return _CONSTANTS[t]
        forms = {
            INT: ("{0}", "{0}", "{0} + 1", "coalesce({0}, -9)", "abs({0})", "nullif({0}, 1)", "{0} % 2"),
            BIG: ("{0}", "{0}", "coalesce({0}, 0)", "-{0}"),
            TEXT: ("{0}", "{0}", "upper({0})", "{0} || 'x'", "coalesce({0}, '?')", "left({0}, 1)"),
            NUM: ("{0}", "{0}", "{0} * 2", "round({0}, 1)", "coalesce({0}, 0.00)"),
            DATE: ("{0}", "{0}", "{0} + 1", "coalesce({0}, date '1970-01-01')"),
            BOOL: ("{0}", "NOT {0}", "{0} IS NULL", "coalesce({0}, false)"),
            INTS: ("{0}", "{0} || 1", "array_append({0}, NULL)"),
        }
        return rng.choice(forms[t]).format(name)

    def _condition(self, source: Source, depth: int) -> str:
        rng = self.rng
        names = [(n, t) for n, t in source.columns.items() if t in _SORTED]
        name, t = rng.choice(names) if names else ("1", INT)
        kind = rng.randrange(10)
        if kind == 0:
            return f"{name} IS {rng.choice(('', 'NOT '))}NULL"
        if kind == 1:
            one, two = self._condition(source, depth), self._condition(source, depth)
            return f"({one} {rng.choice(('AND', 'OR'))} {two})"
        if kind == 2:
            return f"NOT ({self._condition(source, depth)})"
        if kind == 3 and depth > 0:
            inner = f"SELECT 1 FROM h AS e WHERE e.k = {self._value(source, INT)}"
            return f"{rng.choice(('', 'NOT '))}EXISTS ({inner})"
        if kind == 4 and depth > 0:
            inner = f"SELECT e.k FROM h AS e{rng.choice(_FEW)}"
            return f"{self._value(source, INT)} {rng.choice(('', 'NOT '))}IN ({inner})"
        if kind == 5 and depth > 0:
            op, word = rng.choice(("=", "<", ">=", "<>")), rng.choice(("ANY", "ALL", "SOME"))
            return f"{self._value(source, INT)} {op} {word} (SELECT e.k FROM h AS e{rng.choice(_FEW)})"
        if kind == 6 and depth > 0:
            return f"{self._value(source, INT)} < {self._subvalue(source)}"
        if kind == 7:
            return f"{self._value(source, INT)} BETWEEN 0 AND 3"
        if kind == 8:
            return f"{self._value(source, TEXT)} LIKE {rng.choice(_LIKES)}"
        return f"{name} {rng.choice(('=', '<>', '<', '>=', 'IS DISTINCT FROM'))} ({self._value(source, t)})"

    def _subvalue(self, source: Source) -> str:
        call = self.rng.choice(
            ("count(*)", "max(e.y)", "min(e.y)", "count(DISTINCT e.s)", "coalesce(max(e.y), -1)")
        )
        where = self.rng.choice(("", f" WHERE e.k = {self._value(source, INT)}", " WHERE e.k > 100"))
        return f"(SELECT {call} FROM h AS e{where})"

    def _aggregate(self, source: Source, among: Sequence[str] = ()) -> tuple[str, str]:
        rng = self.rng
        order = ", ".join(f"{k}{self._direction()}" for k in source.keys)
        number = self._value(source, rng.choice((INT, BIG, NUM, INT)))
        # An average has at least 16 digits in PostgreSQL: of these, all that are asked for.
        short = self._value(source, rng.choice((INT, NUM)))
        kind_of = {INT: (INT, self._value(source, INT)), TEXT: (TEXT, self._value(source, TEXT))}
        t, value = kind_of[INT if among else rng.choice((INT, TEXT))]
        calls: list[tuple[str, str]] = [
            ("count(*)", BIG),
            (f"count(DISTINCT {value})", BIG),
            (f"count({value})", BIG),
            (f"min({value})", t),
            (f"max({value})", t),
        ]
        if not among:
            word = rng.choice(("", "DISTINCT "))
            calls += [
                (f"sum({word}{number})", "any"),
                (f"round(avg({word}{short}), 6)", NUM),
                (f"round(stddev({short}), 6)", NUM),
                (f"bool_and({self._value(source, BOOL)})", BOOL),
                (f"bool_or({self._value(source, BOOL)})", BOOL),
                (f"array_agg({self._value(source, INT)} ORDER BY {order})", INTS),
                (f"string_agg({self._value(source, TEXT)}, ',' ORDER BY {order})", TEXT),
                (f"string_agg(DISTINCT {(v := self._value(source, TEXT))}, ',' ORDER BY {v})", TEXT),
                (
                    f"array_agg(DISTINCT {(v := self._value(source, INT))} ORDER BY {v}{self._direction()})",
                    INTS,
                ),
                (f"jsonb_agg({self._value(source, INT)} ORDER BY {order})", "jsonb"),
                (f"bit_or({self._value(source, INT)})", INT),
                (f"percentile_disc(0.5) WITHIN GROUP (ORDER BY {self._value(source, INT)})", INT),
                (f"mode() WITHIN GROUP (ORDER BY {source.keys[0]} % 1)", INT),
            ]
        call, result = rng.choice(calls)
        if rng.random() < 0.25 and not call.startswith("round("):
            call += f" FILTER (WHERE {self._condition(source, 0)})"
        return call, result

    def _window(self, source: Source) -> tuple[str, str]:
        rng = self.rng
        order = ", ".join(f"{k}{self._direction()}" for k in source.keys)
        partition = (
            f"PARTITION BY {self._value(source, rng.choice((INT, TEXT, BOOL)))} "
            if rng.random() < 0.6
            else ""
        )
        t = rng.choice((INT, TEXT, NUM))
        value = self._value(source, t)
        kind = rng.randrange(4)
        if kind == 0:
            call = rng.choice(("row_number()", "rank()", "dense_rank()", "ntile(3)"))
            return f"{call} OVER ({partition}ORDER BY {order})", BIG
        if kind == 1:
            peers = self._value(source, INT) + self._direction()
            call = rng.choice(("rank()", "dense_rank()", "cume_dist()", "percent_rank()"))
            return f"{call} OVER ({partition}ORDER BY {peers})", BIG
        if kind == 2:
            call = rng.choice(
                (
                    "lag({0})",
                    "lead({0}, 2)",
                    "lag({0}, 1, {0})",
                    "first_value({0})",
                    "last_value({0})",
                    "nth_value({0}, 2)",
                )
            )
            frame = "" if call.startswith(("lag", "lead")) else self._frame()
            return f"{call.format(value)} OVER ({partition}ORDER BY {order}{frame})", t
        call = rng.choice(
            (
                f"sum({self._value(source, NUM)})",
                f"count({value})",
                f"max({value})",
                "count(*)",
                f"min({self._value(source, INT)})",
            )
        )
        if rng.random() < 0.25:
            call += f" FILTER (WHERE {self._condition(source, 0)})"
        if rng.random() < 0.3:
            peers = rng.choice(source.keys) + rng.choice(("", " DESC"))
            low, high = rng.choice(
                (
                    ("1 PRECEDING", "CURRENT ROW"),
                    ("2 PRECEDING", "1 FOLLOWING"),
                    ("CURRENT ROW", "UNBOUNDED FOLLOWING"),
                )
            )
            return (
                f"{call} OVER ({partition}ORDER BY {peers} RANGE BETWEEN {low} AND {high})",
                "any",
            )
        return f"{call} OVER ({partition}ORDER BY {order}{self._frame()})", "any"

    def _frame(self) -> str:
        low = self.rng.choice(("UNBOUNDED PRECEDING", "1 PRECEDING", "CURRENT ROW", "2 PRECEDING"))
        high = self.rng.choice(("UNBOUNDED FOLLOWING", "1 FOLLOWING", "CURRENT ROW", "0 FOLLOWING"))
        mode = self.rng.choice(("ROWS", "ROWS", "GROUPS"))
        return self.rng.choice(("", f" {mode} BETWEEN {low} AND {high}"))


_TEXTS = ("'a'", "'b'", "NULL", "''")
_LIKES = ("'a%'", "'%'", "''", "'_'")
_FEW = ("", " WHERE e.k IS NOT NULL", " WHERE e.k > 1", " WHERE false")
