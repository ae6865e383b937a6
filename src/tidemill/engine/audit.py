"""Who did what: logins and changes of the catalog, in the log and as the relation mz_audit_events.

Sessions and doors tell `AuditLog`; each event is one line of the log `tidemill.audit` (which is what to
keep), and the last `MAX_EVENTS` since the server started can be read as rows. Promise: an event has names and
ids, never a statement's text, so no password, secret or value of a row can be in it. Safe to call from any
thread.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tidemill.catalog.access import Access
from tidemill.catalog.items import Comment, Item, ItemId, kind_name
from tidemill.catalog.state import CatalogState

if TYPE_CHECKING:
    from tidemill.engine.session import EngineSession

log = logging.getLogger("tidemill.audit")

# Rows of mz_audit_events, some 500 bytes each; older ones are in the log alone.
MAX_EVENTS = 10_000
# Of one statement: DROP ... CASCADE may take thousands with it.
MAX_EVENTS_OF_STATEMENT = 100
# Names of roles come from whoever knocks, and may be long.
MAX_NAME = 255


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """`type` is login, login refused, or the statement's first words; `object_type` and what follows are
    None where it is about no object."""

    id: int
    occurred_at: datetime
    type: str
    role: str
    client_address: str
    object_type: str | None = None
    object_id: str | None = None
    object_name: str | None = None
    detail: str | None = None


class AuditLog:
    def __init__(self, *, trusting: bool = False) -> None:
        """`trusting`: nobody proves who they are, so a login says little, and is not in the log."""
        self._login_level = logging.DEBUG if trusting else logging.INFO
        self._ids = itertools.count(1)
        self._events: deque[AuditEvent] = deque(maxlen=MAX_EVENTS)

    def events(self) -> list[AuditEvent]:
        """The last ones, the oldest first."""
        return list(self._events)

    def logged_in(self, session: EngineSession) -> None:
        detail = f"session {session.process_id}"
        self._note("login", session.role, session.client_address, detail=detail, level=self._login_level)

    def login_refused(self, role: str, address: str, reason: str) -> None:
        self._note("login refused", role[:MAX_NAME], address, detail=reason, level=logging.WARNING)

    def changed(self, session: EngineSession, verb: str, old: CatalogState, new: CatalogState) -> None:
        """A statement of the session has changed the catalog."""
        acting = session.variables.get("role")
        detail = None if acting == "none" else f"as {acting}"
        for item, state in itertools.islice(_affected(old, new), MAX_EVENTS_OF_STATEMENT):
            self._note(
                verb.lower(),
                session.role,
                session.client_address,
                kind_name(item),
                item.id,
                ".".join(state.full_name(item)),
                detail,
            )

    def _note(
        self,
        type_: str,
        role: str,
        address: str,
        object_type: str | None = None,
        object_id: str | None = None,
        object_name: str | None = None,
        detail: str | None = None,
        *,
        level: int = logging.INFO,
    ) -> None:
        event = AuditEvent(
            next(self._ids),
            datetime.now(UTC),
            type_,
            role,
            address,
            object_type,
            object_id,
            object_name,
            detail,
        )
        self._events.append(event)
        fields = {
            "role": role,
            "address": address,
            "object_type": object_type,
            "object": object_name,
            "detail": detail,
        }
        log.log(level, "%s", type_, extra={"fields": {k: v for k, v in fields.items() if v}})


def _affected(old: CatalogState, new: CatalogState) -> Iterable[tuple[Item, CatalogState]]:
    """What is new, other than it was, or gone, each once, with the state that it is described in. Who may
    use a thing is a change of the thing."""
    seen: set[ItemId] = set()
    for before, after, state in ((old, new, new), (new, old, old)):
        for item in after.items.values():
            if before.items.get(item.id) is item or (item.id in before.items and state is old):
                continue
            about = item.on if isinstance(item, Access | Comment) else item.id
            found = state.items.get(about)
            if found is not None and about not in seen:
                seen.add(about)
                yield found, state
