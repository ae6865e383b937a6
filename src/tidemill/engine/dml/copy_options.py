"""The options of COPY: converts the clause into `api.CopyOptions`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

from tidemill.engine.api import CopyOptions
from tidemill.errors import UndefinedObject
from tidemill.sql import ast
from tidemill.sql.parser.copy_options import CODECS
from tidemill.types.model import Column


def copy_options(o: ast.CopyClause, columns: Sequence[Column]) -> CopyOptions:
    """`columns` are the copied columns. Options may name no others."""
    names = {c.name for c in columns}
    for option, named in (
        ("FORCE_QUOTE", o.force_quote),
        ("FORCE_NOT_NULL", o.force_not_null),
        ("FORCE_NULL", o.force_null),
    ):
        for name in named if named != ("*",) else ():
            if name not in names:
                raise UndefinedObject(
                    f'column "{name}" of {option} is not among those that are copied', sqlstate="42703"
                )
    return CopyOptions(**asdict(replace(o, encoding=CODECS[o.encoding])))
