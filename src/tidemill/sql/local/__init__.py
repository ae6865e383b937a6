"""Queries over rows that are at hand, answered in this process: the system's relations, without Spark.

Called by the engine for a query whose relations are all the system's (`psql`'s `\\d`, a driver's
introspection). `compile_query` makes functions of a parsed query, in PostgreSQL's semantics, or raises
`NotLocal`: then the binder and Spark have the word, and the errors that a person reads are the binder's. So
what is not known here is never answered differently, only slower. Rows are some thousands: they are Python
tuples, joined by hash tables.
"""

from __future__ import annotations

from tidemill.sql.local.functions import Function
from tidemill.sql.local.kinds import Reg, Type
from tidemill.sql.local.model import NotLocal, Runtime
from tidemill.sql.local.statement import LocalQuery, compile_query

__all__ = ["Function", "LocalQuery", "NotLocal", "Reg", "Runtime", "Type", "compile_query"]
