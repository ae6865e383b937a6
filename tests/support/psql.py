"""psql with TLS: the one that comes with the PostgreSQL of the tests has none."""

from __future__ import annotations

import shutil

import pytest


def psql_with_tls() -> str:
    """The one on the PATH; a test without it is skipped."""
    found = shutil.which("psql")
    if found is None:
        pytest.skip("the psql that the tests bring has no TLS, and there is no other")
    return found
