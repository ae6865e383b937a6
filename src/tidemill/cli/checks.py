"""The checks of `tidemill doctor`: each function returns its finding and how to fix the problem.

A check does not raise for the problem that it checks, leaves no changes behind, and takes at most one second.
`fail` means that the server would not start or not work. `warn` means that it works with the named risk.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import socket
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tidemill.cli.versions import all_versions
from tidemill.config import Address, Config, flag_name
from tidemill.errors import TidemillError

MB = 1 << 20
GB = 1 << 30
MIN_PYTHON = (3, 11)
# Python with Arrow and the working memory of tables, in addition to the Java heap.
SERVER_MEMORY = 1 * GB
# Below the first a commit may fail at any moment. Below the second compaction may fail, because it writes
# before it deletes.
MIN_DISK = 200 * MB
LOW_DISK = 2 * GB
# 5,000 connections (the server's limit), and the files of Spark and of the shards.
WANTED_FILES = 8192
# A commit syncs a part, a log entry and their folders. If each sync takes longer than this, a commit cannot
# reach its target of 25 ms.
SLOW_FSYNC = 0.010


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. `status` is ok, warn or fail; `hint` says how to fix a warn or fail."""

    name: str
    status: str
    found: str
    hint: str = ""


def all_checks(config: Config) -> list[Check]:
    found = [python(), libraries(), java(), memory(config), open_files(), host_name()]
    found += data_dir(config)
    found.append(scratch(config))
    found += [port("sql_addr", config.sql_addr), port("http_addr", config.http_addr)]
    return found


def python() -> Check:
    shown = ".".join(str(n) for n in sys.version_info[:3])
    if sys.version_info[:2] < MIN_PYTHON:
        return Check("python", "fail", shown, "Install Python 3.11 or later and make the environment anew.")
    if sys.maxsize < 2**32:
        return Check("python", "fail", f"{shown}, 32 bits", "Use a 64-bit Python.")
    return Check("python", "ok", shown)


def libraries() -> Check:
    versions = all_versions()
    missing = [name for name, number in versions.items() if number == "missing"]
    if missing:
        return Check(
            "libraries",
            "fail",
            f"missing: {', '.join(missing)}",
            "Install Tidemill anew: make setup, or pip.",
        )
    shown = ", ".join(f"{name} {number}" for name, number in versions.items() if name != "python")
    return Check("libraries", "ok", shown)


def java() -> Check:
    from tidemill.query import class_archive
    from tidemill.query.java import find_java

    try:
        found = find_java()
    except TidemillError as e:
        return Check("java", "fail", f"{e.primary}: {e.detail}" if e.detail else e.primary, e.hint or "")
    said = f"Java {found.version} from {found.source} ({found.home})"
    archived = class_archive.find(found) is not None
    said += (
        ", with an archive of classes" if archived else "; `tidemill prepare` would make Spark start sooner"
    )
    return Check("java", "ok", said)


def memory(config: Config) -> Check:
    total = _memory_limit()
    unit = {"k": 1 << 10, "m": MB, "g": GB}[config.spark_driver_memory[-1]]
    heap = int(config.spark_driver_memory[:-1]) * unit
    found = (
        f"{total / GB:.1f} GB for {heap / GB:.1f} GB of Java heap and {SERVER_MEMORY / GB:.0f} GB beside it"
    )
    if total < heap + SERVER_MEMORY:
        smaller = max(512, (total - SERVER_MEMORY) // MB)
        return Check(
            "memory", "warn", found, f"Set --spark-driver-memory {smaller}m, or give it more memory."
        )
    return Check("memory", "ok", found)


def _memory_limit() -> int:
    """The memory that this process may use: that of the machine or, in a container, its limit."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            total = min(total, int(Path(path).read_text()))
    return total


def open_files() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= WANTED_FILES:
        return Check("open files", "ok", "unlimited" if soft == resource.RLIM_INFINITY else str(soft))
    room = "ulimit -n" if hard == resource.RLIM_INFINITY or hard >= WANTED_FILES else "the hard limit"
    return Check(
        "open files", "warn", str(soft), f"Raise {room} to {WANTED_FILES} for thousands of connections."
    )


def host_name() -> Check:
    """Check the machine's host name. Spark's driver resolves it and does not start if that fails, unless
    another name is set."""
    name = socket.gethostname()
    try:
        return Check("host name", "ok", f"{name} is {socket.gethostbyname(name)}")
    except OSError as e:
        hint = f'Add "127.0.0.1 {name}" to /etc/hosts, or set SPARK_LOCAL_HOSTNAME=localhost.'
        return Check("host name", "warn", f"{name} has no address: {e.strerror or e}", hint)


def data_dir(config: Config) -> list[Check]:
    if config.on_s3:
        return _bucket(config)
    folder = Path(config.data_dir)
    if folder.exists() and not folder.is_dir():
        return [Check("data dir", "fail", f"{folder} is a file", "Name a folder with --data-dir.")]
    probed = _existing(folder)
    where = str(folder) if probed == folder else f"{folder} (to be made in {probed})"
    try:
        took = _sync_time(probed)
    except OSError as e:
        hint = "Give this user the right to write there, or name another folder with --data-dir."
        if e.errno == errno.ENOSPC:
            hint = "Free space on the disk, or name another folder with --data-dir."
        return [Check("data dir", "fail", f"cannot write to {where}: {e.strerror}", hint)]
    checks = [Check("data dir", "ok", f"{where} is writable, a synced write takes {took * 1e3:.1f} ms")]
    if took > SLOW_FSYNC:
        hint = "Commits will be slow: put the data directory on a faster, local disk."
        checks = [Check("data dir", "warn", checks[0].found, hint)]
    return [*checks, *_held(config), _space("disk", probed, "--data-dir")]


def _held(config: Config) -> list[Check]:
    """The holder that keeps a new server from this folder; empty if there is none."""
    from tidemill.cli.survey import read_holder
    from tidemill.persist.blob import open_blobs
    from tidemill.persist.environment import DirectoryHeld
    from tidemill.persist.lock import DirectoryLock

    blobs = open_blobs(config.data_dir)
    if not DirectoryLock(blobs).taken():
        return []
    try:
        _, holder = read_holder(blobs)
    except TidemillError:
        holder = None
    error = DirectoryHeld(holder)
    return [Check("holder", "fail", error.primary, error.hint or "")]


def _existing(folder: Path) -> Path:
    """The folder, or its nearest existing parent, in which it would be created."""
    while not folder.is_dir():
        folder = folder.parent
    return folder


def _sync_time(folder: Path) -> float:
    """The median of five small synced writes, in seconds. The probe file has no visible name."""
    times: list[float] = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(5):
            begun = time.perf_counter()
            file.write(b"tidemill")
            file.flush()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - begun)
    return sorted(times)[2]


def _space(name: str, folder: Path, flag: str) -> Check:
    free = shutil.disk_usage(folder).free
    found = f"{free / GB:.1f} GB free at {folder}"
    hint = f"Free space there, or name a folder on another disk with {flag}."
    if free < MIN_DISK:
        return Check(name, "fail", found, hint)
    if free < LOW_DISK:
        return Check(name, "warn", found, hint)
    return Check(name, "ok", found)


def scratch(config: Config) -> Check:
    folder = _existing(Path(config.scratch_dir or tempfile.gettempdir()))
    if not os.access(folder, os.W_OK | os.X_OK):
        hint = "Give this user the right to write there, or name another folder with --scratch-dir."
        return Check("scratch dir", "fail", f"cannot write to {folder}", hint)
    return _space("scratch dir", folder, "--scratch-dir")


def _bucket(config: Config) -> list[Check]:
    from tidemill.cli.survey import read_holder
    from tidemill.persist.blob import open_blobs
    from tidemill.persist.environment import DirectoryHeld

    try:
        blobs = open_blobs(config.data_dir, config.s3_options())
        empty = next(iter(blobs.list("")), None) is None
        holder = None if empty else read_holder(blobs)[1]
    except Exception as e:
        text = " ".join(str(e).split())[:300]
        hint = "Check the bucket's name, --s3-endpoint, --s3-region and the credentials."
        return [Check("data dir", "fail", f"cannot read {config.data_dir}: {text}", hint)]
    answers = Check("data dir", "ok", f"{config.data_dir} answers")
    if holder is None or holder.released is not None:
        return [answers]
    # A store has no lock that shows whether the holder is alive. A starting server waits for its heartbeat.
    found = f"{DirectoryHeld(holder).primary}, unless it ended without closing"
    return [answers, Check("holder", "warn", found, "A second server is refused while that one runs.")]


def port(setting: str, address: Address) -> Check:
    flag = flag_name(setting)
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
    except OSError as e:
        if e.errno == errno.EADDRINUSE:
            hint = f"Stop the program that listens there (perhaps a server of yours), or choose with {flag}."
            return Check(flag, "fail", f"{address} is in use", hint)
        return Check(flag, "fail", f"cannot listen on {address}: {e.strerror or e}", f"Choose with {flag}.")
    return Check(flag, "ok", f"{address} is free")
