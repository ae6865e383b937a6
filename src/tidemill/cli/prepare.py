"""`tidemill prepare`: writes the archive of classes with which Spark starts in half the time."""

from __future__ import annotations

import sys

from tidemill.errors import TidemillError
from tidemill.ingest.warm import WORKERS, warm_up
from tidemill.query.class_archive import make


def run() -> int:
    """The exit status is 1 if there is no archive; servers work without it."""
    try:
        archive = make(WORKERS, warm_up, _say)
    except TidemillError as e:
        for line in (e.primary, e.detail, e.hint):
            if line:
                print(line, file=sys.stderr)
        return 1
    size = archive.file.stat().st_size >> 20
    print(f"Spark starts with the {size} MB of {archive.file}")
    return 0


def _say(step: str) -> None:
    print(f"{step} ...", file=sys.stderr, flush=True)
