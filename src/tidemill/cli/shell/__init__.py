"""`tidemill sql`: an interactive shell for Tidemill and PostgreSQL, modelled on psql.

The manual is docs/shell.md. Called by `tidemill.cli.sql` only.

Modules without I/O: `splitter` (lines to statements), `arguments`, `patterns`, `display_settings`, the
`format_*` modules (rows to text) and `context` (completion). Modules with I/O: `session` (the connection),
`printing` and `output`, `sources` and `prompt` (input lines). `shell` connects them, `commands` has the
backslash commands, and `start` is the entry point.
"""
