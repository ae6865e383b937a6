"""Marks: what the catalog upstream tells of a table's rows beside the stream.

The stream does not say that a table was out of the publication for a while, that ALTER TABLE ... USING wrote
all of its rows anew, that a partition was attached, detached or truncated on its own, or that the values of
an enum have other names. `read_marks` asks the catalog for what such statements leave there. `describe` does
it when a table is added to the source, and `table_watch` compares with it later (`compare`). What is harmless
becomes the new state, which is stored with the source's definition (`learned`), under the `key` of the
description that it continues.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import psycopg

# Publications have schemas since this version.
_SCHEMAS_SINCE = 150_000

MarksSpec: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Partition:
    """A table with rows: the table itself, or a leaf of a partitioned one. `file` is its relfilenode, `toast`
    the OID of its TOAST table: 0 if it has none, None if that was not asked for (by an earlier version).
    `made`: it was made as a partition, and not attached with the rows that it had. `logged`: its changes are
    in the server's log. `named`: a publication names it, so that PostgreSQL refuses SET UNLOGGED."""

    shown: str
    file: int
    toast: int | None = None
    made: bool = True
    logged: bool = True
    named: bool = False


@dataclass(frozen=True, slots=True)
class TableMarks:
    """`members` are the rows of the catalog that put the table into the publication. `parts` are by OID.
    `columns` are the versions of the rows that describe the columns.
    `forms` is what the texts of a type are made of (labels, attributes), by the type's OID."""

    key: str
    members: frozenset[str] = frozenset()
    partitioned: bool = False
    parts: Mapping[int, Partition] = field(default_factory=dict[int, Partition])
    columns: Mapping[str, int] = field(default_factory=dict[str, int])
    forms: Mapping[int, frozenset[str]] = field(default_factory=dict[int, frozenset[str]])

    def of_types(self, wanted: Collection[int]) -> TableMarks:
        """With the forms of these types alone."""
        return replace(self, forms={t: form for t, form in self.forms.items() if t in wanted})

    def spec(self) -> MarksSpec:
        return {
            "key": self.key,
            "members": sorted(self.members),
            "partitioned": self.partitioned,
            "parts": {str(n): [part.shown, part.file, part.toast] for n, part in self.parts.items()},
            "columns": dict(self.columns),
            "forms": {str(t): sorted(form) for t, form in self.forms.items()},
        }


def read_spec(spec: MarksSpec) -> TableMarks:
    return TableMarks(
        str(spec["key"]),
        frozenset(spec["members"]),
        bool(spec["partitioned"]),
        {int(relid): Partition(*part) for relid, part in spec["parts"].items()},
        {str(name): int(version) for name, version in spec["columns"].items()},
        {int(t): frozenset(form) for t, form in spec.get("forms", {}).items()},
    )


def read_marks(
    sql: psycopg.Connection[Any], publication: str, relids: Collection[int]
) -> dict[int, TableMarks]:
    """The marks of those of the tables that exist, with new keys. Raises psycopg.Error."""
    wanted = list(relids)
    rows = sql.execute(_COLUMNS, [wanted]).fetchall()
    columns: dict[int, dict[str, int]] = {}
    partitioned: dict[int, bool] = {}
    for relid, kind, name, version in rows:
        columns.setdefault(relid, {})[name] = version
        partitioned[relid] = kind == "p"
    parts: dict[int, dict[int, Partition]] = {}
    for root, relid, shown_, file, *more in sql.execute(_PARTS, [wanted]):
        parts.setdefault(root, {})[relid] = Partition(shown_, file or 0, *more)
    schemas = _IN_SCHEMAS if sql.info.server_version >= _SCHEMAS_SINCE else ""
    members: dict[int, set[str]] = {}
    for relid, member in sql.execute(
        (_MEMBERS + schemas).encode(), {"relids": wanted, "publication": publication}
    ):
        members.setdefault(relid, set()).add(member)
    forms: dict[int, dict[int, set[str]]] = {}
    for relid, type_, form in sql.execute(_FORMS, [wanted]):
        forms.setdefault(relid, {}).setdefault(type_, set()).add(form)
    return {
        relid: TableMarks(
            uuid.uuid4().hex,
            frozenset(members.get(relid, ())),
            partitioned[relid],
            parts.get(relid, {}),
            found,
            {type_: frozenset(form) for type_, form in forms.get(relid, {}).items()},
        )
        for relid, found in columns.items()
    }


# Whoever reads the version of a row of the catalog sees each of its changes. (Freezing leaves it as it is.)
_COLUMNS = """
SELECT c.oid::int8, c.relkind::text, a.attname::text, a.xmin::text::int8
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
WHERE c.oid = ANY(%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
"""

# A partition that was made by CREATE TABLE ... PARTITION OF was empty: the rows of the catalog that describe
# it, and those that make it and all between it and the root partitions, are of one transaction each.
_PARTS = """
SELECT root.oid::int8, leaf.oid::int8, format('%%I.%%I', n.nspname, leaf.relname),
       pg_relation_filenode(leaf.oid)::int8, leaf.reltoastrelid::int8,
       NOT EXISTS (
         SELECT FROM pg_partition_ancestors(leaf.oid) a
         JOIN pg_inherits i ON i.inhrelid = a.relid
         JOIN pg_attribute s ON s.attrelid = a.relid AND s.attname = 'tableoid'
         WHERE i.xmin <> s.xmin
           AND a.relid NOT IN (SELECT up.relid FROM pg_partition_ancestors(root.oid) up)),
       leaf.relpersistence = 'p',
       EXISTS (SELECT FROM pg_publication_rel WHERE prrelid = leaf.oid)
FROM pg_class root
CROSS JOIN LATERAL (
  SELECT relid FROM pg_partition_tree(root.oid) WHERE isleaf AND root.relkind = 'p'
  UNION ALL SELECT root.oid WHERE root.relkind <> 'p'
) tree
JOIN pg_class leaf ON leaf.oid = tree.relid
JOIN pg_namespace n ON n.oid = leaf.relnamespace
WHERE root.oid = ANY(%s::oid[])
"""

# The types of the columns that are not PostgreSQL's own, with those that they are made of (domains, arrays,
# ranges, composite types), and of these the labels and attributes.
_FORMS = """
WITH RECURSIVE used AS (
  SELECT attrelid AS relid, atttypid AS root, atttypid AS oid FROM pg_attribute
  WHERE attrelid = ANY(%s::oid[]) AND attnum > 0 AND NOT attisdropped AND atttypid >= 16384
  UNION
  SELECT u.relid, u.root, part.oid FROM used u CROSS JOIN LATERAL (
    SELECT typbasetype AS oid FROM pg_type WHERE oid = u.oid
    UNION ALL SELECT oid FROM pg_type WHERE typarray = u.oid
    UNION ALL SELECT rngsubtype FROM pg_range r
      WHERE u.oid::text IN (r.rngtypid::text, to_jsonb(r) ->> 'rngmultitypid')
    UNION ALL SELECT a.atttypid FROM pg_type t JOIN pg_attribute a ON a.attrelid = t.typrelid
      WHERE t.oid = u.oid AND a.attnum > 0 AND NOT a.attisdropped
  ) part WHERE part.oid >= 16384
)
SELECT u.relid::int8, u.root::int8, format('label %%s %%s', e.oid, e.xmin::text)
FROM used u JOIN pg_enum e ON e.enumtypid = u.oid
UNION
SELECT u.relid::int8, u.root::int8, format('attributes %%s', string_agg(format('%%s %%s %%s', a.attnum,
  a.atttypid, a.attisdropped), ',' ORDER BY a.attnum))
FROM used u JOIN pg_type t ON t.oid = u.oid JOIN pg_attribute a ON a.attrelid = t.typrelid
WHERE a.attnum > 0
GROUP BY u.relid, u.root, u.oid
"""

# The publication itself, with its version: ALTER PUBLICATION ... SET (publish = ...) changes it. And a table
# that is published with its schema, or with the table whose partition it is, with the version of what binds
# it to that: it may leave and come back.
PUBLICATION = "publication"
_MEMBERS = """
WITH up AS (
  SELECT r.oid AS root, c.oid, c.relnamespace
  FROM unnest(%(relids)s::oid[]) r (oid)
  CROSS JOIN LATERAL (SELECT r.oid UNION SELECT relid FROM pg_partition_ancestors(r.oid)) a (oid)
  JOIN pg_class c ON c.oid = a.oid
), p AS (SELECT oid, xmin FROM pg_publication WHERE pubname = %(publication)s)
SELECT up.root::int8, format('publication %%s %%s', p.oid, p.xmin::text) FROM up, p
UNION
SELECT up.root::int8, format('table %%s %%s', r.oid, (
  SELECT string_agg(i.xmin::text, ' ' ORDER BY i.inhrelid) FROM pg_inherits i WHERE i.inhrelid IN (
    SELECT relid FROM pg_partition_ancestors(up.root)
    EXCEPT SELECT relid FROM pg_partition_ancestors(up.oid)) AND up.root <> up.oid))
FROM up JOIN pg_publication_rel r ON r.prrelid = up.oid JOIN p ON r.prpubid = p.oid
"""
_IN_SCHEMAS = """
UNION
SELECT up.root::int8, format('schema %%s %%s', s.oid, (
  SELECT d.xmin FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = up.oid
  AND d.objsubid = 0 AND d.refclassid = 'pg_namespace'::regclass LIMIT 1)) FROM up
JOIN pg_publication_namespace s ON s.pnnspid = up.relnamespace JOIN p ON s.pnpubid = p.oid
"""


@dataclass(frozen=True, slots=True)
class Difference:
    """Why the rows of a table are not known any more: a text, and what is behind it."""

    what: str
    detail: str


def compare(
    table: str, publication: str, known: TableMarks, found: TableMarks, columns: Collection[str]
) -> Difference | None:
    """What happened to the table (its name as it is shown) that the stream does not say. `columns` are those
    that are read."""
    gone = known.members - found.members
    if any(member.startswith(PUBLICATION) for member in gone):
        return Difference(
            f"publication {publication} was altered or created again upstream",
            f"Changes of table {table} may have been left out meanwhile.",
        )
    if gone:
        return Difference(
            f"table {table} was out of publication {publication}",
            "It was taken out and added again, or with another row filter or column list: changes are "
            "missing.",
        )
    if any(form - found.forms.get(t, frozenset()) for t, form in known.forms.items()):
        return Difference(
            f"a type of table {table} was altered upstream",
            "Labels or attributes have changed: rows that were read have other texts now.",
        )
    if known.partitioned:
        return _partitions(table, known, found)
    moved = any(part.file != found.parts[n].file for n, part in known.parts.items() if n in found.parts)
    if moved and any(known.columns.get(name) != found.columns.get(name) for name in columns):
        return Difference(
            f"table {table} was rewritten upstream",
            "ALTER TABLE wrote all of its rows anew, which is not in the stream.",
        )
    if known.columns == found.columns and any(
        _rewritten(part, found.parts[n]) for n, part in known.parts.items() if n in found.parts
    ):
        return Difference(
            f"table {table} was rewritten upstream",
            "If it was UNLOGGED for a while, changes are missing.",
        )
    return None


def _rewritten(known: Partition, found: Partition) -> bool:
    """By ALTER TABLE, which makes another TOAST table; VACUUM FULL and CLUSTER do not. If no column changed
    (ADD COLUMN is harmless), it was SET LOGGED, or looks like it. Not known of a table without one."""
    return bool(known.toast) and found.toast != known.toast and not found.named


def _partitions(table: str, known: TableMarks, found: TableMarks) -> Difference | None:
    for relid, part in known.parts.items():
        now = found.parts.get(relid)
        if now is None:
            return Difference(
                f"partition {part.shown} of table {table} was removed upstream",
                "It was dropped, detached, or has partitions of its own: the stream does not have that.",
            )
        if now.file != part.file:
            return Difference(
                f"partition {part.shown} of table {table} was truncated or rewritten upstream",
                "A publication with publish_via_partition_root does not have TRUNCATE of one partition.",
            )
    for relid, part in found.parts.items():
        if relid not in known.parts and not part.made:
            return Difference(
                f"table {part.shown} became a partition of table {table} upstream",
                "The rows that it had are not in the stream.",
            )
        if not part.logged:
            return Difference(
                f"partition {part.shown} of table {table} is UNLOGGED upstream",
                "Its changes are not in the server's log.",
            )
    return None


def not_full(table: str, partition: str) -> Difference:
    return Difference(
        f"partition {partition} of table {table} does not have REPLICA IDENTITY FULL",
        "The stream lacks the old rows of its updates and deletes.",
    )
