"""pg_proc beside PostgreSQL's: functions with the same arguments have the same volatility."""

from __future__ import annotations

import psycopg

from support.embedded import postgres_server
from tidemill.engine.relations.pg.procs import procs

ASK = """SELECT proname, proargtypes::oid[], provolatile
         FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace"""


def test_the_same_volatility() -> None:
    with postgres_server() as uri, psycopg.connect(uri) as connection:
        by_types: dict[tuple[str, tuple[int, ...]], str] = {}
        by_name: dict[str, set[str]] = {}
        for name, types, volatility in connection.execute(ASK):
            by_types[name, tuple(types)] = volatility
            by_name.setdefault(name, set()).add(volatility)
    differ: list[str] = []
    compared = 0
    for proc in procs().values():
        # Arguments may be of other types than PostgreSQL's ("any" for our own): then all of that name count.
        own = by_types.get((proc.name, proc.args))
        theirs = by_name.get(proc.name, set()) if own is None else {own}
        if len(theirs) == 1:
            compared += 1
            if theirs != {proc.volatility}:
                differ.append(f"{proc.name}({proc.arguments}) is {proc.volatility}, not {theirs}")
    assert not differ
    assert compared > 400
