"""SUBSCRIBE: how soon, to how many, how much at once, in which shape; and what PostgreSQL does beside it.

Real servers, readers in processes of their own (`bench.subscribe.reader`); what they got is checked. Parts
are chosen with `--only`.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Collection

import psycopg

from bench.report import Figure, print_table
from bench.subscribe import latency, peers, queries, snapshot
from bench.subscribe.crowd import Wrong
from support.server import ServerError

PARTS: dict[str, Callable[..., list[Figure]]] = {
    "latency": latency.one,
    "readers": latency.many,
    "queries": queries.measure_queries,
    "snapshot": snapshot.large,
    "shapes": snapshot.shapes,
    "peers": peers.measure,
}


def measure(*, quick: bool = False, only: Collection[str] = ()) -> list[Figure]:
    unknown = set(only) - set(PARTS)
    if unknown:
        raise SystemExit(f"no part named {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    # The server and the readers inherit it: each connection is a file.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    figures: list[Figure] = []
    for name, part in PARTS.items():
        if only and name not in only:
            continue
        began = time.monotonic()
        try:
            found = part(quick=quick)
        except (Wrong, ServerError, psycopg.Error) as e:
            # The other parts go on.
            text = f"FAILED: {str(e).strip() or type(e).__name__}"
            found = [Figure(name, text, "runs, with the right result", False)]
        print(f"  {name}: {time.monotonic() - began:.0f} s", flush=True)
        print_table(found)
        figures.extend(found)
    return figures
