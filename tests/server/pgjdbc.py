"""The PostgreSQL driver of Java, for tests: where its jar is, and a program of ours that logs in with it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tidemill.dev.jars import Bundle, cache_folder, fetch
from tidemill.errors import Unavailable

PGJDBC = Bundle("pgjdbc", ("org.postgresql:postgresql:42.7.13",), alone=True)
PROGRAMS = Path(__file__).parent / "jdbc"


def driver() -> Path:
    """The jar: the one that TIDEMILL_PGJDBC names, Debezium's if that was ever fetched, or from Maven. The
    test is skipped where there is none to be had, or no compiler for our programs."""
    if shutil.which("javac") is None:
        pytest.skip("no JDK")
    named = os.environ.get("TIDEMILL_PGJDBC")
    if named:
        return Path(named)
    found = sorted(cache_folder().glob("debezium-postgres-*/*/postgresql-*.jar"))
    try:
        return found[0] if found else next(fetch(PGJDBC).glob("postgresql-*.jar"))
    except Unavailable as e:
        pytest.skip(f"no pgjdbc: {e.primary}")


class Logins:
    """One JVM for all logins of a module: it takes longer to start than to log in a hundred times."""

    def __init__(self, jar: Path) -> None:
        self._process = subprocess.Popen(
            ["java", "-cp", str(jar), str(PROGRAMS / "Logins.java")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def try_url(self, url: str) -> str:
        """`in: ` and the role, or `out: ` and what the driver says."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{url}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        self._process.communicate(timeout=120)
