"""Notices and changed parameters on their way to the client.

Owned by `session.EngineSession`; the server layer takes them while a statement runs. Promises that their
number is bounded, and that a parameter that has changed and changed back is not reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tidemill.engine.api import ParameterStatus
from tidemill.engine.session.variables import Variables
from tidemill.errors import Notice

# Notices that wait for a client that does not read; later ones are dropped (they are advice, not data).
MAX_PENDING_EVENTS = 1000
# From the least to the most severe: the values of client_min_messages.
SEVERITIES = (
    *("debug5", "debug4", "debug3", "debug2", "debug", "debug1"),
    *("log", "info", "notice", "warning", "error"),
)


class ClientEvents:
    def __init__(self, variables: Variables) -> None:
        self._variables = variables
        self._pending: list[Notice | ParameterStatus] = []
        # Called when a notice is new.
        self.wake: Callable[[], None] | None = None
        # The reported variables as the client last received them, and the generation of these values.
        self._reported = variables.reported()
        self._reported_at = variables.generation

    def notice(self, notice: Notice) -> None:
        """Queues a notice for the client if its level passes client_min_messages (INFO always does)."""
        least = SEVERITIES.index(self._variables.get("client_min_messages"))
        if notice.severity != "INFO" and SEVERITIES.index(notice.severity.lower()) < least:
            return
        if len(self._pending) < MAX_PENDING_EVENTS:
            self._pending.append(notice)
            if self.wake is not None:
                self.wake()

    @property
    def parameters(self) -> Mapping[str, str]:
        if self._reported_at == self._variables.generation:
            return self._reported
        return self._variables.reported()

    def take(self, *, parameters: bool = True) -> list[Notice | ParameterStatus]:
        """Returns everything since the last call; changed parameters only if the caller requests them."""
        if parameters and self._reported_at != self._variables.generation:
            self._report_parameters()
        events, self._pending = self._pending, []
        return events

    def _report_parameters(self) -> None:
        self._reported_at = self._variables.generation
        now = self._variables.reported()
        for name, value in now.items():
            if self._reported.get(name) != value:
                self._pending.append(ParameterStatus(name, value))
        self._reported = now
