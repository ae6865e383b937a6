"""REGEX decoder: the groups of a regular expression are the columns.

Called by `formats`, and at CREATE to refuse invalid expressions. The engine is Rust's `regex` (through
polars), which takes linear time in the message: no expression and no message can make a task hang.
"""

from __future__ import annotations

import polars as pl
import pyarrow as pa

from tidemill.decode.contract import Decoded
from tidemill.decode.text import text_errors
from tidemill.decode.utf8 import texts
from tidemill.errors import TidemillError
from tidemill.types.kernels import pc
from tidemill.types.model import TEXT, Column

PREFIX = "regex deserialization error: "


class PatternError(TidemillError):
    """The regular expression cannot define columns."""

    sqlstate = "2201B"


class RegexDecoder:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        try:
            sample = pl.Series("text", [""], pl.String).str.extract_groups(pattern)
            names = sample.struct.fields
        except pl.exceptions.ComputeError as error:
            raise PatternError("invalid regular expression", detail=str(error).strip()) from None
        if not names:
            raise PatternError(
                "regular expression has no groups",
                hint="Put the parts that should be columns in parentheses: (?P<name>...) or (...).",
            )
        # polars names a group without a name by its number.
        named = [f"column{name}" if name == str(i + 1) else name for i, name in enumerate(names)]
        repeated = next((name for name in named if named.count(name) > 1), None)
        if repeated is not None:
            raise PatternError(f'regular expression has two groups called "{repeated}"')
        self.columns: tuple[Column, ...] = tuple(Column(name, TEXT) for name in named)

    def decode(self, messages: pa.Array) -> Decoded:
        text, wrong = texts(messages)
        series = pl.Series(pl.from_arrow(text))
        matched = series.str.contains(self._pattern).to_arrow()
        groups = series.str.extract_groups(self._pattern).struct
        columns = [groups.field(name).to_arrow().cast(pa.string()) for name in groups.fields]
        missed = pc.fill_null(pc.invert(matched), False).to_numpy(zero_copy_only=False)
        if not missed.any():
            return Decoded(columns, text_errors(messages, wrong, PREFIX))
        why = pa.array(
            [f"{PREFIX}message does not match" if miss else None for miss in missed.tolist()], pa.string()
        )
        others = text_errors(messages, wrong, PREFIX)
        return Decoded(columns, why if others is None else pc.coalesce(why, others))
