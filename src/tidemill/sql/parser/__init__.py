"""The statement parser's internals: private to `tidemill.sql`.

`tidemill.sql.parse` scans the text, splits it into statements and passes each to `dispatch` as a
`cursor.TokenCursor`. `dispatch` reads the first words and calls the module of that family. `query` finds the
query bodies. `sqlglot_tokens`, `clauses`, `precedence` and `tree` surround sqlglot's stock PostgreSQL parser,
so that anything it misreads raises an error instead of giving a wrong answer later.
"""
