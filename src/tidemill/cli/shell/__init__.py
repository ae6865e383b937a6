"""`tidemill sql`: an interactive shell for Tidemill and PostgreSQL, in psql's manner.

docs/shell.md is the manual.

What knows no input and no output: `splitter` (lines to statements), `arguments`, `patterns`,
`display_settings` and the `format_*` modules (rows to text), `context` (what can be completed). What does:
`session` (the connection), `printing` and `output`, `sources` and `prompt` (where lines come from). `shell`
ties them together, `commands` are the backslash commands, `start` begins. Called by `tidemill.cli.sql` alone.
"""
