"""Tours of the documentation: a section of a page with statements, what is done beside them, and what is
shown, played against real parts."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping

from support.server import ServerProcess
from support.wire import Wire
from text.docs import Psql, matches, split

SECONDS = 120.0
_BLOCK = re.compile(r"^```((?:\w+ tour)?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def play(
    section: str,
    server: ServerProcess,
    database: str,
    replaced: Mapping[str, str],
    others: Mapping[str, Callable[[str], None]],
) -> int:
    """Statements are in blocks of `sql tour`; those of another language are played by `others`. A block
    without a language is what the last statement shows, soon. Returns how many of these there are. `replaced`
    is for addresses and names, in all blocks but the last kind."""
    wire = Wire(f"{server.sql_dsn.replace('dbname=materialize', '')} dbname={database}")
    psql, last, shown = Psql(wire), "", 0
    for language, block in _BLOCK.findall(section):
        told = block
        for old, new in replaced.items():
            told = told.replace(old, new)
        if language == "sql tour":
            for last in split(told):
                said, failed = psql.type(last)
                assert not failed, said
        elif language:
            others[language.removesuffix(" tour")](told)
        else:
            deadline = time.monotonic() + SECONDS
            while not matches(block, psql.type(last)[0]):
                assert time.monotonic() < deadline, (last, psql.type(last)[0])
                time.sleep(0.2)
            shown += 1
    wire.close()
    return shown
