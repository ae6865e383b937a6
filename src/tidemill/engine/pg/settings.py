"""pg_settings: the session's variables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tidemill.engine.pg.spec import Record, spec

if TYPE_CHECKING:
    from tidemill.engine.system_relations import Situation


def _settings(s: Situation) -> Iterable[Record]:
    for name, setting, description in s.variables():
        yield {
            "name": name,
            "setting": setting,
            "category": "Tidemill",
            "short_desc": description,
            "context": "user",
            "vartype": "string",
            "source": "session",
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
