"""Failpoints: named places where a test makes the process fail.

`hit("persist.part.written")` does nothing unless the environment variable `TIDEMILL_FAILPOINTS` (or `arm`)
names it: `name=action[@n][;...]`. `n` is the n-th hit (default 1). The action is `kill` (SIGKILL to this
process), `error` (raises `FailpointError`), `eio` / `enospc` (raises that OSError) or `sleep:<seconds>`.
`NAMES` lists every name and the step just before it, so that a test can visit all of them. Hitting an unknown
name is a bug.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
import time

NAMES: dict[str, str] = {}


class FailpointError(Exception):
    """Raised by the action `error`."""


class _Armed:
    __slots__ = ("action", "left")

    def __init__(self, action: str, left: int) -> None:
        self.action = action
        self.left = left  # the hits left until it fires; it fires once


_armed: dict[str, _Armed] = {}
_lock = threading.Lock()


def register(name: str, after: str) -> str:
    """Declare a failpoint at import time; returns its name."""
    NAMES[name] = after
    return name


def arm(spec: str) -> None:
    """Replace all armed failpoints by `spec` ("" disarms everything)."""
    with _lock:
        _armed.clear()
        for item in filter(None, (s.strip() for s in spec.split(";"))):
            name, _, action = item.partition("=")
            action, _, nth = action.partition("@")
            _armed[name] = _Armed(action or "kill", int(nth or 1))


def hit(name: str) -> None:
    """Fail here if the failpoint is armed. Costs one dictionary lookup when nothing is armed."""
    if not _armed:
        return
    if name not in NAMES:
        raise FailpointError(f"unknown failpoint {name}")
    with _lock:
        armed = _armed.get(name)
        if armed is None:
            return
        armed.left -= 1
        if armed.left:
            return
        del _armed[name]
    _act(name, armed.action)


def _act(name: str, action: str) -> None:
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if action == "error":
        raise FailpointError(name)
    if action == "eio":
        raise OSError(errno.EIO, os.strerror(errno.EIO), name)
    if action == "enospc":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
    if action.startswith("sleep:"):
        time.sleep(float(action[6:]))
        return
    raise FailpointError(f"unknown action {action!r} at failpoint {name}")


arm(os.environ.get("TIDEMILL_FAILPOINTS", ""))
