"""The catalog queries of `\\d` and related commands: SQL for both PostgreSQL and Tidemill.

If `tidemill` is true, the queries also join Tidemill's own catalog. For example, a relation that is a table
in the PostgreSQL catalogs may be a source.
"""

from __future__ import annotations

from tidemill.cli.shell.patterns import Pattern

IS_TIDEMILL = "SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = 'mz_catalog'"

_KIND_WORDS = """CASE c.relkind WHEN 'r' THEN 'table' WHEN 'v' THEN 'view' WHEN 'm' THEN 'materialized view'
    WHEN 'i' THEN 'index' WHEN 'S' THEN 'sequence' WHEN 't' THEN 'TOAST table' WHEN 'f' THEN 'foreign table'
    WHEN 'p' THEN 'partitioned table' WHEN 'I' THEN 'partitioned index' END"""
# The letters of \\dt, \\dv, ... and pg_class.relkind.
_KINDS = {"t": "rp", "v": "v", "m": "m", "i": "iI", "s": "S", "E": "f"}
_SYSTEM = ("pg_catalog", "information_schema", "mz_catalog", "mz_internal")


def _where(conditions: list[str]) -> str:
    return f"\nWHERE {' AND '.join(conditions)}" if conditions else ""


def _listed(*names: str) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _hidden(pattern: Pattern, system: bool, column: str = "n.nspname") -> list[str]:
    """System relations are shown only on request."""
    if system or pattern.given:
        return []
    return [f"{column} NOT IN ({_listed(*_SYSTEM)})", f"{column} !~ '^pg_toast'"]


def relations(letters: str, pattern: Pattern, *, system: bool, more: bool, tidemill: bool) -> str:
    """`\\d`, `\\dt`, ...: the list of relations."""
    kinds = "".join(_KINDS[letter] for letter in letters or "tvmsE")
    word = _KIND_WORDS
    join = ""
    conditions = [f"c.relkind IN ({_listed(*kinds)})"]
    if tidemill:
        word = f"CASE WHEN o.type IS NULL THEN {word} ELSE replace(replace(o.type, '-', ' '), '_', ' ') END"
        join = "\nLEFT JOIN mz_catalog.mz_objects o ON o.oid = c.oid"
        if letters:
            # A source has the relkind of a table, but \\dt shows only tables.
            conditions.append("(o.type IS NULL OR o.type NOT IN ('source', 'source_progress'))")
    conditions += _hidden(pattern, system)
    conditions += pattern.conditions("n.nspname", "c.relname", "pg_catalog.pg_table_is_visible(c.oid)")
    columns = [
        'n.nspname AS "Schema"',
        'c.relname AS "Name"',
        f'{word} AS "Type"',
        'pg_catalog.pg_get_userbyid(c.relowner) AS "Owner"',
    ]
    if letters == "i":
        columns.append('t.relname AS "Table"')
        join += (
            "\nLEFT JOIN pg_catalog.pg_index x ON x.indexrelid = c.oid"
            "\nLEFT JOIN pg_catalog.pg_class t ON t.oid = x.indrelid"
        )
    if more:
        columns.append("pg_catalog.obj_description(c.oid, 'pg_class') AS \"Description\"")
    return (
        f"SELECT {', '.join(columns)}\nFROM pg_catalog.pg_class c"
        f"\nLEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace{join}"
        f"{_where(conditions)}\nORDER BY 1, 2"
    )


def sources(pattern: Pattern, *, more: bool) -> str:
    """Tidemill's `\\ds`: the sources and their status."""
    columns = [
        'n.nspname AS "Schema"',
        's.name AS "Name"',
        's.type AS "Type"',
        'st.status AS "Status"',
        'pg_catalog.pg_get_userbyid(c.relowner) AS "Owner"',
    ]
    if more:
        columns += [
            'p.name AS "Of source"',
            'st.error AS "Error"',
            "pg_catalog.obj_description(c.oid, 'pg_class') AS \"Description\"",
        ]
    conditions = pattern.conditions("n.nspname", "s.name", "pg_catalog.pg_table_is_visible(c.oid)")
    return (
        f"SELECT {', '.join(columns)}\nFROM mz_catalog.mz_sources s"
        "\nJOIN pg_catalog.pg_class c ON c.oid = s.oid"
        "\nJOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        "\nLEFT JOIN mz_internal.mz_source_statuses st ON st.id = s.id"
        f"\nLEFT JOIN mz_catalog.mz_sources p ON p.id = s.source_id{_where(conditions)}\nORDER BY 1, 2"
    )


def found(pattern: Pattern, *, tidemill: bool) -> str:
    """The relations that match `\\d name`: OID, schema, name, kind, and kind in words."""
    word = _KIND_WORDS
    join = ""
    if tidemill:
        word = f"CASE WHEN o.type = 'source' THEN 'source' ELSE {word} END"
        join = "\nLEFT JOIN mz_catalog.mz_objects o ON o.oid = c.oid"
    conditions = pattern.conditions("n.nspname", "c.relname", "pg_catalog.pg_table_is_visible(c.oid)")
    return (
        f"SELECT c.oid, n.nspname, c.relname, c.relkind, {word}\nFROM pg_catalog.pg_class c"
        f"\nLEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace{join}"
        f"{_where(conditions)}\nORDER BY 2, 3"
    )


def columns(oid: str, *, more: bool) -> str:
    selected = [
        'a.attname AS "Column"',
        'pg_catalog.format_type(a.atttypid, a.atttypmod) AS "Type"',
        "CASE WHEN a.attnotnull THEN 'not null' ELSE '' END AS \"Nullable\"",
        "coalesce(pg_catalog.pg_get_expr(d.adbin, d.adrelid), '') AS \"Default\"",
    ]
    if more:
        selected.append('pg_catalog.col_description(a.attrelid, a.attnum) AS "Description"')
    return (
        f"SELECT {', '.join(selected)}\nFROM pg_catalog.pg_attribute a"
        "\nLEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum"
        f"\nWHERE a.attrelid = {oid} AND a.attnum > 0 AND NOT a.attisdropped\nORDER BY a.attnum"
    )


def indexes(oid: str) -> str:
    return (
        "SELECT i.relname, x.indisprimary, x.indisunique, pg_catalog.pg_get_indexdef(i.oid)"
        "\nFROM pg_catalog.pg_index x JOIN pg_catalog.pg_class i ON i.oid = x.indexrelid"
        f"\nWHERE x.indrelid = {oid}\nORDER BY x.indisprimary DESC, i.relname"
    )


def constraints(oid: str) -> str:
    """Check and foreign key constraints. Keys are shown as indexes."""
    return (
        "SELECT contype, conname, pg_catalog.pg_get_constraintdef(oid, true)\nFROM pg_catalog.pg_constraint"
        f"\nWHERE conrelid = {oid} AND contype IN ('c', 'f')\nORDER BY contype, conname"
    )


def definition(oid: str) -> str:
    return f"SELECT pg_catalog.pg_get_viewdef({oid}, true)"


def schemas(pattern: Pattern, *, system: bool, more: bool) -> str:
    conditions = _hidden(pattern, system) + pattern.conditions("n.nspname", "n.nspname", None)
    if not system and not pattern.given:
        conditions.append("n.nspname !~ '^pg_'")
    rights = ", pg_catalog.array_to_string(n.nspacl, E'\\n') AS \"Access privileges\""
    words = ", pg_catalog.obj_description(n.oid, 'pg_namespace') AS \"Description\""
    extra = rights + words if more else ""
    return (
        'SELECT n.nspname AS "Name", pg_catalog.pg_get_userbyid(n.nspowner) AS "Owner"'
        f"{extra}\nFROM pg_catalog.pg_namespace n{_where(conditions)}\nORDER BY 1"
    )


def functions(pattern: Pattern, *, system: bool, more: bool) -> str:
    conditions = _hidden(pattern, system)
    conditions += pattern.conditions("n.nspname", "p.proname", "pg_catalog.pg_function_is_visible(p.oid)")
    kind = "CASE p.prokind WHEN 'a' THEN 'agg' WHEN 'w' THEN 'window' WHEN 'p' THEN 'proc' ELSE 'func' END"
    extra = ", pg_catalog.obj_description(p.oid, 'pg_proc') AS \"Description\"" if more else ""
    return (
        'SELECT n.nspname AS "Schema", p.proname AS "Name", '
        'pg_catalog.pg_get_function_result(p.oid) AS "Result data type", '
        f'pg_catalog.pg_get_function_arguments(p.oid) AS "Argument data types", {kind} AS "Type"{extra}'
        "\nFROM pg_catalog.pg_proc p LEFT JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace"
        f"{_where(conditions)}\nORDER BY 1, 2, 4"
    )


def roles(pattern: Pattern, *, system: bool) -> str:
    conditions = pattern.conditions("r.rolname", "r.rolname", None)
    if not system and not pattern.given:
        conditions.append("r.rolname !~ '^pg_'")
    return (
        "SELECT r.rolname, r.rolsuper, r.rolinherit, r.rolcreaterole, r.rolcreatedb, r.rolcanlogin,"
        " r.rolreplication,"
        " ARRAY(SELECT b.rolname FROM pg_catalog.pg_auth_members m"
        " JOIN pg_catalog.pg_roles b ON m.roleid = b.oid WHERE m.member = r.oid ORDER BY 1)"
        f"\nFROM pg_catalog.pg_roles r{_where(conditions)}\nORDER BY 1"
    )


def databases(pattern: Pattern, *, more: bool) -> str:
    conditions = pattern.conditions("d.datname", "d.datname", None)
    rights = ", pg_catalog.array_to_string(d.datacl, E'\\n') AS \"Access privileges\""
    words = ", pg_catalog.shobj_description(d.oid, 'pg_database') AS \"Description\""
    extra = rights + words if more else ""
    return (
        'SELECT d.datname AS "Name", pg_catalog.pg_get_userbyid(d.datdba) AS "Owner", '
        f'pg_catalog.pg_encoding_to_char(d.encoding) AS "Encoding"{extra}'
        f"\nFROM pg_catalog.pg_database d{_where(conditions)}\nORDER BY 1"
    )


def privileges(pattern: Pattern) -> str:
    conditions = ["c.relkind IN ('r', 'v', 'm', 'S', 'f', 'p')", *_hidden(pattern, False)]
    conditions += pattern.conditions("n.nspname", "c.relname", "pg_catalog.pg_table_is_visible(c.oid)")
    return (
        f'SELECT n.nspname AS "Schema", c.relname AS "Name", {_KIND_WORDS} AS "Type", '
        "pg_catalog.array_to_string(c.relacl, E'\\n') AS \"Access privileges\""
        "\nFROM pg_catalog.pg_class c LEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        f"{_where(conditions)}\nORDER BY 1, 2"
    )


def settings(pattern: Pattern) -> str:
    conditions = pattern.conditions("s.name", "s.name", None)
    return (
        'SELECT s.name AS "Parameter", s.setting AS "Value"\nFROM pg_catalog.pg_settings s'
        f"{_where(conditions)}\nORDER BY 1"
    )
