"""A text description of a bound query, for EXPLAIN."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp

from tidemill.sql.bind.determinism import Dependence
from tidemill.sql.plan.explain import explain, explain_reaches

if TYPE_CHECKING:
    from tidemill.sql.bind.model import BoundQuery


def describe(bound: BoundQuery) -> str:
    """The output columns, the inputs with the columns that are read, the plan and the Spark query."""
    lines = ["Columns:"]
    lines += [f"  {c.name}: {c.type}" for c in bound.columns]
    if bound.inputs:
        lines.append("Inputs:")
        for placeholder, relation in bound.inputs.items():
            used = ", ".join(sorted(bound.used.get(placeholder, ()))) or "(row count only)"
            lines.append(f"  {placeholder} = {relation}: {used}")
    flags = [
        text
        for on, text in (
            (bound.ordered, "ordered"),
            *(
                (True, f"uses {used}")
                for used, on in bound.determinism.found.items()
                if on is not Dependence.TIME_ZONE
            ),
            (bound.is_constant, "constant"),
        )
        if on
    ]
    if flags:
        lines.append(f"Properties: {', '.join(flags)}")
    lines.append("Plan:")
    lines += [f"  {line}" for line in explain(bound.plan)]
    reach = explain_reaches(bound.plan)
    if reach:
        lines.append("A changed row reaches:")
        lines += [f"  {line}" for line in reach]
    lines.append("Spark:")
    tree = bound.spark
    for node in list(tree.find_all(exp.Placeholder)):
        node.replace(exp.Var(this=f"${node.this}"))
    text = tree.sql(dialect="spark", normalize_functions=False, pretty=True)
    lines += [f"  {line}" for line in text.split("\n")]
    return "\n".join(lines)
