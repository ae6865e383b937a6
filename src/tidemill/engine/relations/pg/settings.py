"""pg_settings: the session's variables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tidemill.engine.relations.pg.spec import Record, spec

if TYPE_CHECKING:
    from tidemill.engine.relations.system import Situation


def _settings(s: Situation) -> Iterable[Record]:
    for v in s.variables():
        source = "default" if v.setting == v.boot else "client" if v.setting == v.reset else "session"
        yield {
            "name": v.name,
            "setting": v.setting,
            "category": "Tidemill",
            "short_desc": v.description,
            "context": "internal" if v.read_only else "user",
            "vartype": "string",
            "source": source,
            "boot_val": v.boot,
            "reset_val": v.reset,
            "pending_restart": False,
        }


SETTINGS_SPEC = spec(
    "pg_catalog",
    "pg_settings",
    """name text, setting text, unit text, category text, short_desc text, extra_desc text, context text,
    vartype text, source text, min_val text, max_val text, enumvals text[], boot_val text, reset_val text,
    sourcefile text, sourceline int4, pending_restart bool""",
    _settings,
    nulls=True,
)
