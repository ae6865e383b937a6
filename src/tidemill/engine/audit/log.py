"""The audit log of logins and catalog changes, also visible as the relation mz_audit_events.

Sessions and the server layer call `AuditLog`. Each event is one line of the log `tidemill.audit`, and one
line in the files that outlive the server (`audit.files`). The last `MAX_EVENTS` of each kind are readable
as rows. Thread-safe.

Promises: an event has names and ids, never the text of a statement, so it contains no password, secret or
row value. A change of the catalog is on disk before its statement returns.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemill.catalog.access import Access
from tidemill.catalog.items import Comment, Item, ItemId, kind_name
from tidemill.catalog.state import CatalogState
from tidemill.config import Config
from tidemill.config_values import size_bytes
from tidemill.engine.audit.details import access_detail
from tidemill.engine.audit.files import KINDS, AuditFiles, Kind

if TYPE_CHECKING:
    from tidemill.engine.session.identity import Identity

log = logging.getLogger("tidemill.audit")

# Rows of mz_audit_events of each kind, some 500 bytes each; older ones are in the files and the log alone.
MAX_EVENTS = 10_000
# Of one statement: DROP ... CASCADE may take thousands with it.
MAX_EVENTS_OF_STATEMENT = 100
# Names of roles are sent by any client, and may be long.
MAX_NAME = 255


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """`type` is login, login refused, or the first words of the statement. `object_type` and the fields after
    it are None if the event concerns no object."""

    id: int
    occurred_at: datetime
    type: str
    role: str
    client_address: str
    object_type: str | None = None
    object_id: str | None = None
    object_name: str | None = None
    detail: str | None = None

    @property
    def kind(self) -> Kind:
        return "logins" if self.object_type is None else "changes"

    def line(self, level: str) -> dict[str, Any]:
        """The event as a line of --log-format json, with the ids."""
        fields = {
            "ts": self.occurred_at.isoformat(timespec="microseconds"),
            "level": level,
            "logger": log.name,
            "message": self.type,
            "id": self.id,
            "role": self.role,
            "address": self.client_address,
            "object_type": self.object_type,
            "object_id": self.object_id,
            "object": self.object_name,
            "detail": self.detail,
        }
        return {name: value for name, value in fields.items() if value is not None}


def event_of(line: dict[str, Any]) -> AuditEvent | None:
    """Parses a line; None if it is not an event."""
    try:
        return AuditEvent(
            line["id"],
            datetime.fromisoformat(line["ts"]),
            str(line["message"]),
            str(line["role"]),
            str(line["address"]),
            line.get("object_type"),
            line.get("object_id"),
            line.get("object"),
            line.get("detail"),
        )
    except (KeyError, TypeError, ValueError):
        return None


def audit_log(config: Config, environment_id: str) -> AuditLog:
    """The audit log of a data directory. Several data directories may share a configured folder."""
    folder: Path | None = None
    if config.audit_dir:
        folder = Path(config.audit_dir) / environment_id
    elif not config.on_s3:
        folder = Path(config.data_dir) / "audit"
    size = size_bytes(config.audit_max_size)
    files = AuditFiles(folder, size) if folder and size else None
    return AuditLog(files, trusting=config.authentication == "trust")


class AuditLog:
    def __init__(self, files: AuditFiles | None = None, *, trusting: bool = False) -> None:
        """`trusting`: clients are not authenticated, so logins go neither to the log nor to the files."""
        self._trusting = trusting
        self._files = files
        self._events: dict[Kind, deque[AuditEvent]] = {kind: deque(maxlen=MAX_EVENTS) for kind in KINDS}
        last = 0
        for line in [] if files is None else files.read(MAX_EVENTS):
            event = event_of(line)
            if event is not None:
                self._events[event.kind].append(event)
                last = event.id
        self._ids = itertools.count(last + 1)
        if files is not None:
            files.start()

    def events(self) -> list[AuditEvent]:
        """The last events of each kind, oldest first."""
        # Threads note at once: those of a kind may be a little out of order too.
        shown = [event for of in self._events.values() for event in list(of)]
        return sorted(shown, key=lambda event: event.id)

    def close(self) -> None:
        if self._files is not None:
            self._files.close()

    def logged_in(self, who: Identity, process_id: int) -> None:
        level = logging.DEBUG if self._trusting else logging.INFO
        self._note(
            "login",
            who.login_name,
            who.address,
            detail=f"session {process_id}",
            level=level,
        )

    def login_refused(self, role: str, address: str, reason: str) -> None:
        self._note("login refused", role[:MAX_NAME], address, detail=reason, level=logging.WARNING)

    def changed(self, who: Identity, verb: str, old: CatalogState, new: CatalogState) -> None:
        """Records a change of the catalog by a statement of that client. Blocks until it is on disk."""
        acting = who.set_role()
        acted = None if acting is None else f"as {acting}"
        for item, state in itertools.islice(_affected(old, new), MAX_EVENTS_OF_STATEMENT):
            self._note(
                verb.lower(),
                who.login_name,
                who.address,
                object_type=kind_name(item),
                object_id=item.id,
                object_name=".".join(state.full_name(item)),
                detail="; ".join(filter(None, (access_detail(item, old, new), acted))) or None,
            )
        if self._files is not None:
            self._files.flush()

    def _note(
        self, type_: str, role: str, address: str, *, level: int = logging.INFO, **about: str | None
    ) -> None:
        """`about` are the fields of the event that concern an object, and its detail."""
        event = AuditEvent(next(self._ids), datetime.now(UTC), type_, role, address, **about)
        self._events[event.kind].append(event)
        if self._files is not None and level > logging.DEBUG:
            self._files.put(event.kind, event.id, event.line(_LEVELS[level]))
        fields = {
            "role": role,
            "address": address,
            "object_type": event.object_type,
            "object": event.object_name,
            "detail": event.detail,
        }
        log.log(level, "%s", type_, extra={"fields": {k: v for k, v in fields.items() if v}})


_LEVELS = {logging.INFO: "info", logging.WARNING: "warn"}


def _affected(old: CatalogState, new: CatalogState) -> Iterable[tuple[Item, CatalogState]]:
    """The added, changed and removed items, each once, with the state that describes it. A change of access
    rights is a change of the item."""
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
