"""State shared by all parts of one compilation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidemill.sql.bind.model import NameResolver, SessionInfo
from tidemill.types.model import Kind, SqlType

if TYPE_CHECKING:
    from tidemill.sql.local.functions import Function


@dataclass(slots=True)
class LocalContext:
    """`params` are the types of $1, $2, ...: None until the first use in a place with a known type.
    `relations` are the ids of the relations that the query reads.
    """

    session: SessionInfo
    names: NameResolver
    functions: Mapping[str, Sequence[Function]]
    is_local: Mapping[str, int]  # the ids of relations with rows in memory, and their OIDs
    params: list[SqlType | None] = field(default_factory=list)
    relations: set[str] = field(default_factory=set)
    depth: int = 0

    def param(self, index: int) -> SqlType | None:
        while len(self.params) < index:
            self.params.append(None)
        found = self.params[index - 1]
        return None if found is None or found.kind is Kind.UNKNOWN else found
