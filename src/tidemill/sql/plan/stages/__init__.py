"""The stages of a query that is maintained at the cost of what changed.

A stage is local to a key: a change of its inputs can change its answer only for the keys of the changed rows
(`reach`). So the change of the answer is the answer over the rows of these keys as they are, less the answer
over these rows as they were. A query is cut where the keys of neighbouring operators differ; the changes of
the inner stage are changes of an input of the outer one. Linear operators belong to the stage around them.

How a key reaches a stage's inputs: "the rows of the answer whose key is k" is pushed down as if it were a
filter. What arrives at a relation are the expressions over its columns that tell which of its rows can
matter for k.
"""

from __future__ import annotations

from tidemill.sql.plan.operators import Operator
from tidemill.sql.plan.stages.model import Stage, StageInput, linear_inputs
from tidemill.sql.plan.stages.planner import Planner, add_stage, unordered
from tidemill.sql.plan.unkept import NotIncremental, NotReproducible
from tidemill.sql.plan.unnested import unnested

__all__ = ["Stage", "StageInput", "linear_inputs", "stages_of"]


def stages_of(plan: Operator, *, sums: bool = True) -> tuple[Stage, ...]:
    """The query's stages, each after those that it reads; the last one gives the query's answer. Without
    `sums` the rows of groups are always looked up. Raises NotIncremental."""
    made: list[Stage] = []
    plan = unnested(plan)
    planner = Planner(unordered(plan), made, sums)
    try:
        add_stage(planner.plan(), made)
    except NotReproducible as otherwise:
        made.clear()
        try:
            add_stage(Planner(unordered(plan), made, sums).recalled(planner.what), made)
        except NotIncremental:
            raise NotIncremental(otherwise.because, _kept_instead(otherwise.instead)) from None
    return tuple(made)


def _kept_instead(instead: str | None) -> str:
    kept = "Or return its key, too; of a query in FROM, make a materialized view."
    return kept.removeprefix("Or ").capitalize() if instead is None else f"{instead} {kept}"
