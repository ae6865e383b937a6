"""Code that reads a relation from its Delta table, as other programs would run it.

Called for SHOW LOCATION. The code names a version of the table and a time. It finds the rows at that time, or
fails because files of the version are gone; never other rows, since compaction makes new versions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tidemill.types.arrow import DIFF_COLUMN, ERROR_COLUMN, TIME_COLUMN
from tidemill.types.model import RelationDesc
from tidemill.types.names import RESERVED_PREFIX, physical_names


@dataclass(frozen=True, slots=True)
class DeltaVersion:
    """A relation in the Delta table at `location`, complete at `time` in this version."""

    location: str
    version: int
    time: int
    desc: RelationDesc

    @property
    def renamed(self) -> list[tuple[str, str]]:
        """(stored name, the relation's name): equal, where the name could be mistaken for one of ours."""
        stored = physical_names(self.desc)
        return [
            (p, p if name.lower().startswith(RESERVED_PREFIX) or not name else name)
            for p, name in zip(stored, self.desc.names, strict=True)
        ]

    @property
    def condition(self) -> str:
        return f"{TIME_COLUMN} <= {self.time} AND {ERROR_COLUMN} IS NULL"


def _polars(t: DeltaVersion) -> str:
    names = ", ".join(_text(stored) for stored, _ in t.renamed)
    others = {stored: name for stored, name in t.renamed if stored != name}
    lines = [
        "import polars as pl",
        "",
        "rows = (",
        f"    pl.scan_delta({_text(t.location)}, version={t.version})",
        f'    .filter(pl.col("{TIME_COLUMN}") <= {t.time}, pl.col("{ERROR_COLUMN}").is_null())',
        *([f"    .group_by({names})"] if names else []),
        f'    .{"agg" if names else "select"}(pl.col("{DIFF_COLUMN}").sum())',
        f'    .filter(pl.col("{DIFF_COLUMN}") > 0)',
        *([f"    .rename({json.dumps(others, ensure_ascii=False)})"] if others else []),
        "    .collect()",
        ")",
    ]
    return "\n".join(lines)


def _duckdb(t: DeltaVersion) -> str:
    columns = [
        _quoted(stored) if stored == name else f"{_quoted(stored)} AS {_quoted(name)}"
        for stored, name in t.renamed
    ]
    groups = ", ".join(_quoted(stored) for stored, _ in t.renamed)
    return "\n".join(
        [
            f"SELECT {', '.join([*columns, f'sum({DIFF_COLUMN})::BIGINT AS {DIFF_COLUMN}'])}",
            f"FROM delta_scan({_literal(t.location)}, version = {t.version})",
            f"WHERE {t.condition}",
            *([f"GROUP BY {groups}"] if groups else []),
            f"HAVING sum({DIFF_COLUMN}) > 0",
        ]
    )


def _spark(t: DeltaVersion) -> str:
    names = ", ".join(_text(f"`{stored}`") for stored, _ in t.renamed)
    lines = [
        "import json",
        "from deltalake import DeltaTable",
        "from pyspark.sql import functions as F, types as T",
        "",
        f"table = DeltaTable({_text(t.location)}, version={t.version})",
        "schema = T.StructType.fromJson(json.loads(table.schema().to_json()))",
        "rows = (",
        "    spark.read.schema(schema).parquet(*table.file_uris())",
        f"    .where({_text(t.condition)})",
        f"    .groupBy({names})",
        f'    .agg(F.sum("{DIFF_COLUMN}").alias("{DIFF_COLUMN}"))',
        f'    .where("{DIFF_COLUMN} > 0")',
        *(
            f"    .withColumnRenamed({_text(stored)}, {_text(name)})"
            for stored, name in t.renamed
            if stored != name
        ),
        ")",
    ]
    return "\n".join(lines)


READERS: Sequence[tuple[str, Callable[[DeltaVersion], str]]] = (
    ("duckdb", _duckdb),
    ("polars", _polars),
    ("spark", _spark),
)


def _text(value: str) -> str:
    """A string of Python: JSON's form is one."""
    return json.dumps(value, ensure_ascii=False)


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
