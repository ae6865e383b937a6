"""pg_cancel_backend(pid) and pg_terminate_backend(pid): cancel the statement of another session, or end the
session.

Called by `session_functions`. The permission rule is PostgreSQL's: the caller needs the rights of the
session's role.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill.catalog.privileges import PermissionDenied
from tidemill.engine.session.catalog_view import CatalogView
from tidemill.errors import Notice, Unavailable, UndefinedObject

if TYPE_CHECKING:
    from tidemill.engine.session.session import EngineSession


@dataclass(frozen=True, slots=True)
class Backends:
    """The sessions of the server, for one of them. `find` returns the session with a process id."""

    view: CatalogView
    notice: Callable[[Notice], None]
    find: Callable[[int], EngineSession | None]

    def cancel(self, process_id: int | None) -> bool | None:
        return None if process_id is None else self._call(process_id, cancels=True)

    def terminate(self, process_id: int | None) -> bool | None:
        return None if process_id is None else self._call(process_id, cancels=False)

    def _call(self, process_id: int, *, cancels: bool) -> bool:
        target = self.find(process_id)
        if target is None:
            self.notice(Notice(f"PID {process_id} is not a PostgreSQL backend process", "WARNING"))
            return False
        mine = self.view.privileges()
        try:
            theirs = target.identity.login_role(self.view.state)
        except UndefinedObject:
            theirs = None
        if not mine.superuser and (theirs is None or theirs.superuser or not mine.acts_as(theirs.id)):
            what = "cancel query" if cancels else "terminate process"
            raise PermissionDenied(
                f"permission denied to {what}",
                detail="Only roles with privileges of the role whose session it is may do so.",
            )
        if cancels:
            target.cancel()
            return True
        return target.terminate(
            Unavailable("terminating connection due to administrator command", sqlstate="57P01")
        )
