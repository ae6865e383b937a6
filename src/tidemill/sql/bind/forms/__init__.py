"""Expressions that are bound by rules of their own: special syntax, aggregates, windows, subqueries,
set-returning functions, and functions that the tables of `sql.functions` cannot describe. Called by
`bind.expr`.
"""
