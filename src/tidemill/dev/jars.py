"""Java programs from Maven, without Maven: the Ivy that PySpark ships resolves them into a cache folder.

Called by the modules that start Java programs (`broker`, `registry`, `connect`). `fetch` returns a folder
with the whole bundle, or raises an error that shows the cause. A bundle is fetched once per machine and user.
The folder is named after its contents and appears by a rename, so a killed process or two concurrent fetches
leave nothing incomplete. Ivy compares every file with the checksum in the repository.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tidemill.errors import Unavailable
from tidemill.query.java import default_cache_dir, find_java

# The folder for bundles, instead of the user's cache folder.
CACHE_VARIABLE = "TIDEMILL_DEV_CACHE"
# The largest bundle has 109 MB. A download that does not grow for this long has stopped.
STALL_SECONDS = 120.0
# Enough of Ivy's report to show which file was not found, and where.
SHOWN_LINES = 25
POLL_SECONDS = 0.2

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Bundle:
    """The contents of one program.

    `artifacts` are `group:name:version`. With a `classifier` they are tar.gz archives, which are unpacked,
    without dependencies; otherwise jars with their dependencies. `without` names jars that the program must
    find elsewhere. `alone` excludes the dependencies of jars, if the published ones are wrong.
    """

    name: str
    artifacts: tuple[str, ...]
    classifier: str = ""
    without: tuple[str, ...] = ()
    alone: bool = False

    @property
    def folder_name(self) -> str:
        """The folder's name, which differs for another version or another list."""
        spec = "\n".join((*self.artifacts, self.classifier, *self.without, *(["alone"] * self.alone)))
        return f"{self.name}-{hashlib.sha256(spec.encode()).hexdigest()[:12]}"


KAFKA_VERSION = "4.3.1"
# Kafka's jars contain no binding for their logging interface. Without this one, they log nothing, even when
# they fail.
_LOGGING = "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4"

BROKER = Bundle("kafka", (f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}", _LOGGING))
# 3.0.9 is the last one that runs on Java 17.
REGISTRY = Bundle("apicurio", ("io.apicurio:apicurio-registry-app:3.0.9",), classifier="all")
CONNECT = Bundle(
    "connect",
    (
        f"org.apache.kafka:connect-runtime:{KAFKA_VERSION}",
        f"org.apache.kafka:connect-json:{KAFKA_VERSION}",
        _LOGGING,
    ),
)
# Before 3.7 a restart of its task loses transactions (docs/sources/debezium.md).
DEBEZIUM_POSTGRES = Bundle(
    "debezium-postgres", ("io.debezium:debezium-connector-postgres:3.7.0.Final",), classifier="plugin"
)
DEBEZIUM_MARIADB = Bundle(
    "debezium-mariadb", ("io.debezium:debezium-connector-mariadb:3.5.0.Final",), classifier="plugin"
)
# It is in the connector's folder, whose class loader would prefer these four to those of Connect.
AVRO_CONVERTER = Bundle(
    "avro-converter",
    ("io.apicurio:apicurio-registry-utils-converter:2.6.13.Final",),
    without=("kafka-clients", "connect-api", "connect-json", "slf4j-api"),
)


def cache_folder() -> Path:
    """The folder of all bundles."""
    given = os.environ.get(CACHE_VARIABLE)
    return Path(given) if given else default_cache_dir() / "dev"


def fetched(bundle: Bundle) -> bool:
    """Whether `fetch` needs no download."""
    return (cache_folder() / bundle.folder_name).is_dir()


def fetch(bundle: Bundle, progress: Progress | None = None) -> Path:
    """The folder with the files of `bundle`, downloaded the first time. `progress` receives the progress of a
    download about five times a second."""
    tell = progress or silent
    return kept(bundle.folder_name, bundle.name, lambda stage: _resolve(bundle, stage, tell), tell)


def kept(folder_name: str, name: str, make: Callable[[Path], Path], tell: Progress) -> Path:
    """The folder of the cache with this name. `make` gets an empty folder, and makes the contents in it, in a
    folder that it returns. `name` is for messages."""
    cache = cache_folder()
    final = cache / folder_name
    if final.is_dir():
        return final
    try:
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _locked(cache / f"{folder_name}.lock", name, tell):
            if final.is_dir():
                return final
            # We hold the lock, so the process that made these is dead.
            for left in cache.glob(f".{folder_name}-*"):
                shutil.rmtree(left, ignore_errors=True)
            stage = Path(tempfile.mkdtemp(prefix=f".{folder_name}-", dir=cache))
            try:
                make(stage).rename(final)
            finally:
                shutil.rmtree(stage, ignore_errors=True)
    except OSError as e:
        raise Unavailable(
            f"cannot keep {name} in the cache folder",
            detail=f"{e.filename or cache}: {e.strerror or e}",
            hint=f"make {cache} writable, or set {CACHE_VARIABLE} to a folder that is",
        ) from e
    return final


def silent(text: str) -> None:
    pass


@contextmanager
def _locked(path: Path, name: str, tell: Progress) -> Generator[None, None, None]:
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell(f"{name}: waiting for another process that downloads it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _resolve(bundle: Bundle, stage: Path, tell: Progress) -> Path:
    """Run Ivy in `stage`. Returns the folder with the result."""
    files = stage / "files"
    (stage / "ivysettings.xml").write_text(_settings(poms=not (bundle.classifier or bundle.alone)))
    (stage / "ivy.xml").write_text(_module(bundle))
    command = [str(find_java().home / "bin" / "java"), "-XX:TieredStopAtLevel=1", "-Xmx256m"]
    command += ["-jar", str(_ivy_jar()), "-settings", str(stage / "ivysettings.xml")]
    command += ["-ivy", str(stage / "ivy.xml"), "-cache", str(stage / "ivy"), "-confs", "default"]
    command += ["-retrieve", f"{files}/[artifact]-[revision](-[classifier]).[ext]"]
    log = stage / "ivy.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        stalled = not _watch(process, bundle, stage, tell)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if stalled or process.returncode != 0 or not files.is_dir():
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip(" \t.")]
        what = f"no progress for {STALL_SECONDS:.0f} s" if stalled else f"Ivy ended with {process.returncode}"
        raise Unavailable(
            f"cannot download {bundle.name}",
            detail="\n".join([what, *lines[-SHOWN_LINES:]]),
            hint="it comes from Maven Central and is kept once it is there; behind a proxy set "
            "JDK_JAVA_OPTIONS='-Dhttps.proxyHost=... -Dhttps.proxyPort=...'",
        )
    for name in bundle.without:
        for jar in files.glob(f"{name}-[0-9]*.jar"):
            jar.unlink()
    for archive in files.glob("*.tar.gz"):
        tell(f"{bundle.name}: unpacking")
        with tarfile.open(archive) as tar:
            tar.extractall(files, filter="data")
        archive.unlink()
    return files


def _watch(process: subprocess.Popen[bytes], bundle: Bundle, stage: Path, tell: Progress) -> bool:
    """Wait until Ivy ends. Returns False if it makes no progress."""
    size, moved = -1, time.monotonic()
    while process.poll() is None:
        now = _size(stage)
        if now != size:
            size, moved = now, time.monotonic()
            tell(f"{bundle.name}: downloading, {size / 1e6:.1f} MB")
        elif time.monotonic() - moved > STALL_SECONDS:
            return False
        time.sleep(POLL_SECONDS)
    return True


def _size(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except FileNotFoundError:
                # Ivy renames a file when it is complete.
                pass
    return total


def _ivy_jar() -> Path:
    found = importlib.util.find_spec("pyspark")
    assert found is not None and found.origin is not None, "pyspark is a dependency of this package"
    jars = sorted(Path(found.origin).parent.glob("jars/ivy-*.jar"))
    if not jars:
        raise Unavailable(
            "PySpark's folder holds no Ivy, which downloads Java programs",
            detail=str(Path(found.origin).parent / "jars"),
            hint="install pyspark from PyPI",
        )
    return jars[-1]


def _settings(*, poms: bool) -> str:
    """One repository: `ibiblio` without a root is Maven Central. Spark's own chain would query others, too.
    Artifacts without dependencies need no pom, and some poms name parents that were never published."""
    return (
        '<ivysettings><settings defaultResolver="central"/><resolvers>'
        f'<ibiblio name="central" m2compatible="true" usepoms="{str(poms).lower()}"/>'
        "</resolvers></ivysettings>\n"
    )


def _module(bundle: Bundle) -> str:
    lines: list[str] = []
    for artifact in bundle.artifacts:
        group, name, version = artifact.split(":")
        transitive = "false" if bundle.classifier or bundle.alone else "true"
        lines.append(
            f'<dependency org="{group}" name="{name}" rev="{version}" transitive="{transitive}" '
            'conf="default-&gt;default">'
        )
        if bundle.classifier:
            lines.append(
                f'<artifact name="{name}" type="tar.gz" ext="tar.gz" m:classifier="{bundle.classifier}"/>'
            )
        lines.append("</dependency>")
    return (
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        '<info organisation="tidemill" module="bundle"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{''.join(lines)}</dependencies></ivy-module>\n"
    )
