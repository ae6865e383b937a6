"""The PostgreSQL source: its snapshot beside psql, its stream beside pg_recvlogical and under pgbench,
commits until they are visible, and an idle source.

The upstream is that of `tidemill dev postgres`, our side a real server process that is spoken to over SQL.
Every result is compared with the upstream. Parts are chosen with `--only`; `--minutes` is how long the load
of `lag` takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

import psycopg

from bench.ours import Stalled
from bench.postgres import fresh, snapshot, stream
from bench.postgres.upstream import Upstream, upstream
from bench.report import Figure, print_table
from support.server import ServerError

MINUTES = 1.0


def measure(*, quick: bool = False, only: Collection[str] = (), minutes: float = MINUTES) -> list[Figure]:
    parts: dict[str, Callable[[Upstream], list[Figure]]] = {
        "snapshot": lambda up: snapshot.measure(up, quick=quick),
        "stream": lambda up: stream.backlog(up, quick=quick),
        "lag": lambda up: stream.steady(up, quick=quick, minutes=minutes),
        "commits": lambda up: fresh.commits(up, quick=quick),
        "idle": lambda up: fresh.idle(up, quick=quick),
    }
    unknown = set(only) - set(parts)
    if unknown:
        raise SystemExit(f"no part named {', '.join(sorted(unknown))}; there are {', '.join(parts)}")
    figures: list[Figure] = []
    for name, part in parts.items():
        if only and name not in only:
            continue
        began = time.monotonic()
        with upstream() as up:
            try:
                found = part(up)
            except (Stalled, ServerError, psycopg.Error) as e:
                # The other parts go on.
                text = str(e).strip() or type(e).__name__
                found = [Figure(name, f"FAILED: {text}", "runs, with the right result", False)]
        print(f"  {name}: {time.monotonic() - began:.0f} s")
        print_table(found)
        figures += found
    return figures
