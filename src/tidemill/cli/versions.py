"""The versions of Tidemill and its main libraries, for `version` and `doctor`."""

from __future__ import annotations

import platform
from importlib import metadata

LIBRARIES = ("pyspark", "deltalake", "pyarrow", "obstore", "sqlglot")


def all_versions() -> dict[str, str]:
    """Versions by name; "missing" for a library that is not installed. Imports none of them."""
    found = {"tidemill": _version("tidemill"), "python": platform.python_version()}
    return found | {name: _version(name) for name in LIBRARIES}


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "missing"
