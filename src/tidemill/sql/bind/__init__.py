"""The binder: a parsed PostgreSQL query in, a typed Spark query out.

Called by the engine. It resolves names, types every expression as PostgreSQL does, and translates only what
the allow-list of `sql.functions` contains. A query that binds gives PostgreSQL's result or its error;
anything else is refused here by name. Queries are composed as trees; SQL text is never concatenated.
"""

from __future__ import annotations

from tidemill.sql.bind.changes import bind_update
from tidemill.sql.bind.constant import constant_rows
from tidemill.sql.bind.determinism import Dependence, Determinism
from tidemill.sql.bind.forms.table_functions import returns_rows
from tidemill.sql.bind.linear import Branch, Flat, Linearity, linearity, why_not_linear
from tidemill.sql.bind.model import BoundExpr, BoundQuery, NameResolver, Relation, SessionInfo
from tidemill.sql.bind.spark_errors import map_spark_error
from tidemill.sql.bind.statements import (
    bind_insert_source,
    bind_query,
    bind_scalar,
    constant_value,
)
from tidemill.sql.bind.substitute import substitute
from tidemill.sql.functions import SPARK_CONF
from tidemill.sql.plan.linear import ROW

__all__ = [
    "ROW",
    "SPARK_CONF",
    "BoundExpr",
    "BoundQuery",
    "Branch",
    "Dependence",
    "Determinism",
    "Flat",
    "Linearity",
    "NameResolver",
    "Relation",
    "SessionInfo",
    "bind_insert_source",
    "bind_query",
    "bind_scalar",
    "bind_update",
    "constant_rows",
    "constant_value",
    "linearity",
    "map_spark_error",
    "returns_rows",
    "substitute",
    "why_not_linear",
]
