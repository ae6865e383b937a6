"""The machinery of the statement parser: private to `tidemill.sql`.

`tidemill.sql.parse` scans the text, cuts it into statements and hands each, as a `cursor.Cursor`, to
`dispatch`, which looks at the first words and calls one family's file. `query` cuts bodies out;
`sqlglot_tokens`, `clauses`, `precedence` and `tree` stand around sqlglot's stock PostgreSQL parser, so that
what it misreads becomes an error here and not a wrong answer later.
"""
