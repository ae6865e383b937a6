"""ENVELOPE MATERIALIZE: the messages of a CDCv2 stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tidemill.sql.ast.base import offset_field
from tidemill.sql.ast.formats import Envelope
from tidemill.sql.parser.cursor import TokenCursor

_HINT = "Write ENVELOPE MATERIALIZE, or ENVELOPE MATERIALIZE (TIME COMPONENTS 2) where times are pairs."


@dataclass(frozen=True, slots=True)
class Materialize(Envelope):
    """MATERIALIZE [(TIME COMPONENTS n)]."""

    kind: ClassVar[str] = "MATERIALIZE"
    components: int | None = None  # of how many numbers the stream's times are products
    offset: int = offset_field()

    @property
    def options(self) -> Sequence[str]:
        return () if self.components is None else (f"TIME COMPONENTS {self.components}",)


def parse_materialize(cursor: TokenCursor, offset: int) -> Materialize:
    if not cursor.accept_symbol("("):
        return Materialize(offset=offset)
    cursor.expect("time", "components", hint=_HINT)
    cursor.accept_symbol("=")
    components = cursor.integer(_HINT)
    cursor.expect_symbol(")", _HINT)
    return Materialize(components, offset)
