r"""Queries over system relations, answered in this process without Spark.

Called by the engine for a query that reads only system relations (`psql`'s `\d`, a driver's introspection).
`compile_query` compiles a parsed query to functions with PostgreSQL's semantics, or raises `NotLocal`. The
engine then uses the binder and Spark, so the client sees the binder's errors. A query outside this subset is
slower, but never gets a different answer. Inputs have some thousands of rows: rows are Python tuples, joined
by hash tables.
"""

from __future__ import annotations

from tidemill.sql.local.functions import Function
from tidemill.sql.local.kinds import Reg, Type
from tidemill.sql.local.model import NotLocal, Runtime
from tidemill.sql.local.statement import LocalQuery, compile_query

__all__ = ["Function", "LocalQuery", "NotLocal", "Reg", "Runtime", "Type", "compile_query"]
