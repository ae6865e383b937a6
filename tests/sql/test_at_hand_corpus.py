"""Every expression of the corpus that has a form over values at hand gives PostgreSQL's answer in it, for
each row of the corpus's table. The other form of those functions, which Spark's tasks run, is tested by
`test_bind_corpus`."""

from __future__ import annotations

import pyarrow as pa
from bind_corpus import SESSION, Answer, Failure, Oracle, answer_of, expressions
from test_bind_corpus import compare, differences, oracle

from tidemill.errors import TidemillError, UndefinedObject
from tidemill.sql.ast import Query
from tidemill.sql.bind import BoundQuery, Relation, bind_query
from tidemill.sql.bind.constant import evaluate_node
from tidemill.sql.parse import parse
from tidemill.sql.plan.expressions import BoundNode, Const, Op, Ref, rewrite, walk
from tidemill.sql.plan.operators import Project, Scan
from tidemill.types.arrow import arrow_type
from tidemill.types.names import physical_names

__all__ = ["oracle"]

# How many expressions are answered at hand, at least. More is better.
AT_HAND = 600


class Names:
    """The corpus's table v alone."""

    def __init__(self, oracle: Oracle) -> None:
        self.desc, self.rows = oracle.relation("v")
        self.relation_ = Relation("v", ("public", "v"), self.desc, tuple(physical_names(self.desc)))

    def relation(self, parts: tuple[str, ...], position: int | None) -> Relation:
        if parts[-1] != "v":
            raise UndefinedObject("no relation", sqlstate="42P01", position=position)
        return self.relation_

    def bind(self, text: str) -> BoundQuery | None:
        try:
            (parsed,) = parse(f"SELECT {text} FROM v")
            assert isinstance(parsed.statement, Query)
            return bind_query(parsed.statement.tree, self, session=SESSION)
        except TidemillError:
            return None


def at_hand(names: Names, bound: BoundQuery) -> Answer | Failure | None:
    """The answer for all rows; None if the expression has another form only, or calls no function."""
    plan = bound.plan
    if not isinstance(plan, Project) or not isinstance(plan.input, Scan) or len(plan.outputs) != 1:
        return None
    node = plan.outputs[0].node
    if not any(isinstance(part, Op) for part in walk(node)):
        return None
    found: list[pa.Scalar] = []
    for at in range(names.rows.num_rows):

        def value(part: BoundNode, at: int = at) -> BoundNode | None:
            if not isinstance(part, Ref):
                return None
            index = names.relation_.physical.index(part.name)
            return Const(part.type, names.rows.column(index)[at])

        try:
            scalar = evaluate_node(rewrite(node, value), SESSION)
        except TidemillError as error:
            return Failure(error.sqlstate, error.primary)
        if scalar is None:
            return None
        found.append(scalar)
    want = arrow_type(node.type)
    arrays = [pa.repeat(s, 1) if s.is_valid else pa.nulls(1, want) for s in found]
    assert all(a.type == want for a in arrays), node
    return answer_of(bound.columns, pa.table({"c0": pa.concat_arrays(arrays)}), SESSION.time_zone)


def test_the_corpus_at_hand(oracle: Oracle) -> None:
    names, known = Names(oracle), differences()
    answered, problems = 0, list[str]()
    for text in expressions():
        bound = names.bind(text)
        mine = None if bound is None else at_hand(names, bound)
        if mine is None:
            continue
        answered += 1
        problem = compare(mine, oracle.ask(f"SELECT {text} FROM v ORDER BY v.id"))
        if problem is not None and text not in known:
            problems.append(f"{text}: {problem}")
    assert not problems, f"{len(problems)} of {answered}\n" + "\n".join(problems)
    assert answered >= AT_HAND, answered
