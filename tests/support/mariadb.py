"""A real MariaDB with a binary log, for Debezium: of the machine's packages (Debian: `mariadb-server-core`
and `mariadb-client-core`). Where they are missing, the tests that need it are skipped.

The fixture `mariadb` starts it once per run. As a client its own program is used.
"""

from __future__ import annotations

import getpass
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemill.dev.process import HOST, LocalProgram, answers, must_be_free, pick_ports

PROGRAMS = ("mariadbd", "mariadb-install-db", "mariadb")
START_SECONDS = 120.0
CLIENT_SECONDS = 60.0
DATABASE = "app"


def installed() -> bool:
    return all(_path(program) is not None for program in PROGRAMS)


def _path(program: str) -> str | None:
    return shutil.which(program, path="/usr/bin:/usr/sbin:/usr/local/bin:/usr/local/sbin")


class MariaDb(LocalProgram):
    """`root` needs no password on this machine."""

    def __init__(self, folder: Path) -> None:
        super().__init__("MariaDB", folder, "mariadb.log")
        self.port = pick_ports(1)[0]

    def start(self) -> None:
        must_be_free(self.port)
        data, user = self.folder / "data", getpass.getuser()
        if not data.exists():
            install = [_path("mariadb-install-db") or "", "--no-defaults", f"--datadir={data}"]
            more = [f"--user={user}", "--auth-root-authentication-method=normal", "--skip-test-db"]
            subprocess.run([*install, *more], check=True, capture_output=True, timeout=START_SECONDS)
        settings = {
            "datadir": str(data),
            "user": user,
            "port": str(self.port),
            "bind-address": HOST,
            "socket": str(self.folder / "socket"),
            "pid-file": str(self.folder / "pid"),
            "server-id": "7",
            "log-bin": "binlog",
            "binlog-format": "ROW",
            "binlog-row-image": "FULL",
            "gtid-strict-mode": "ON",
            "innodb-buffer-pool-size": "32M",
            "innodb-flush-log-at-trx-commit": "2",
        }
        options = [f"--{name}={value}" for name, value in settings.items()]
        self._launch([_path("mariadbd") or "", "--no-defaults", *options])
        self._wait_ready(lambda: answers(self.port), START_SECONDS)

    def sql(self, *statements: str) -> list[list[str]]:
        """Run statements on one connection; the rows of all of them, as text."""
        client = [_path("mariadb") or "", "--no-defaults", f"--host={HOST}", f"--port={self.port}"]
        run = subprocess.run(
            [*client, "--user=root", "--batch", "--skip-column-names", "--init-command=SET autocommit=1"],
            input=";\n".join((f"CREATE DATABASE IF NOT EXISTS {DATABASE}", f"USE {DATABASE}", *statements)),
            capture_output=True,
            text=True,
            timeout=CLIENT_SECONDS,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        return [line.split("\t") for line in run.stdout.splitlines()]

    def connector(self, prefix: str, bootstrap: str, *tables: str) -> dict[str, str]:
        """The configuration of a connector that writes tables as JSON to `prefix.app.<table>`."""
        return {
            "connector.class": "io.debezium.connector.mariadb.MariaDbConnector",
            "tasks.max": "1",
            "database.hostname": HOST,
            "database.port": str(self.port),
            "database.user": "root",
            "database.password": "",
            "database.server.id": "1007",
            "topic.prefix": prefix,
            "database.include.list": DATABASE,
            "table.include.list": ",".join(f"{DATABASE}.{table}" for table in tables),
            "schema.history.internal.kafka.bootstrap.servers": bootstrap,
            "schema.history.internal.kafka.topic": f"{prefix}.history",
            "provide.transaction.metadata": "true",
            "topic.creation.default.replication.factor": "1",
            "topic.creation.default.partitions": "1",
        }


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDb]:
    if not installed():
        pytest.skip("MariaDB is not installed: apt-get install mariadb-server-core mariadb-client-core")
    folder = Path(tempfile.mkdtemp(prefix="tidemill-mariadb-"))
    program = MariaDb(folder)
    try:
        program.start()
        yield program
    finally:
        program.stop()
        shutil.rmtree(folder, ignore_errors=True)
