"""DuckDB with its reader of Delta tables, which is a package beside it: nothing is fetched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import duckdb_extension_delta


def duckdb_with_delta() -> Any:
    (folder,) = duckdb_extension_delta.__path__
    (extension,) = Path(folder).rglob("delta.duckdb_extension")
    connection: Any = duckdb.connect()
    connection.execute(f"LOAD '{extension}'")
    return connection
