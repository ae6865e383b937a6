"""`python -m bench [NAME ...] [--quick]`: measure, print a table, say which aims were met.

Ratios compare two things in one run, in turns, because machines are noisy. `--quick` shrinks the sizes to
see that everything runs; its figures mean nothing. The status is 0 whatever was measured: a slow machine is
no failure.
"""

from __future__ import annotations

import argparse
import importlib
import platform
import subprocess
import time
from typing import Any

from bench.report import Figure, print_table

CDCV2 = "cdcv2"
PG = "pg"
NAMES = (
    "commit",
    "query",
    "sql",
    "wire",
    PG,
    "idle",
    "start",
    "restart",
    "upsert",
    "tick",
    CDCV2,
    "decode",
    "client",
    "console",
    "subscriptions",
)
# Only when they are asked for by name: one takes half an hour, another an hour and installs its peers, the
# third some twenty minutes, the fourth is about memory alone, `views` takes an hour, the others ten minutes;
# `kinesis` needs Node.
SOAK = "soak"
ROWS = "rows"
KAFKA = "kafka"
SUBSCRIBE = "subscribe"
POSTGRES = "postgres"
OBJECTS = "objects"
KINESIS = "kinesis"
VIEWS = "views"
SINKS = "sinks"
BY_NAME = (SOAK, KAFKA, SUBSCRIBE, ROWS, POSTGRES, OBJECTS, KINESIS, VIEWS, SINKS)
IN_PARTS = (KAFKA, SUBSCRIBE, POSTGRES, OBJECTS, CDCV2, PG, VIEWS, SINKS)
# Where the numbers of rows can be chosen.
IN_SIZES = (VIEWS, KINESIS)
# How long a load takes, where that can be chosen.
IN_MINUTES = {SOAK: 30.0, POSTGRES: 1.0}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"which of: {', '.join(NAMES)} (default: all), {', '.join(BY_NAME)}",
    )
    defaults = ", ".join(f"{name}: {minutes:g}" for name, minutes in IN_MINUTES.items())
    parser.add_argument("--minutes", type=float, help=f"how long a load takes (default: {defaults})")
    parser.add_argument(
        "--only",
        default="",
        metavar="PART,...",
        help=f"which parts of {' or '.join(IN_PARTS)} (default: all; a wrong one lists them)",
    )
    parser.add_argument(
        "--sizes", default="", metavar="ROWS,...", help=f"how many rows, for {' or '.join(IN_SIZES)}"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, only to see that it runs")
    options = parser.parse_args()
    known = tuple(dict.fromkeys((*NAMES, *BY_NAME)))
    unknown = set(options.names) - set(known)
    if unknown:
        parser.error(f"no benchmark named {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    python = platform.python_version()
    print(f"{time.strftime('%Y-%m-%d')}, commit {commit.stdout.strip() or '?'}, Python {python}")
    for name in options.names or NAMES:
        module = importlib.import_module(f"bench.bench_{name}")
        began = time.monotonic()
        more: dict[str, Any] = {}
        if name in IN_MINUTES:
            more["minutes"] = IN_MINUTES[name] if options.minutes is None else options.minutes
        if name in IN_PARTS:
            more["only"] = [part for part in options.only.split(",") if part]
        if name in IN_SIZES:
            more["sizes"] = [int(rows) for rows in options.sizes.split(",") if rows]
        figures: list[Figure] = module.measure(quick=options.quick, **more)
        print(f"\n{name} ({time.monotonic() - began:.0f} s)")
        print_table(figures)


if __name__ == "__main__":
    main()
