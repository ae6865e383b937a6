"""The values of the system parameters, which ALTER SYSTEM sets. One object per engine."""

from __future__ import annotations

from tidemill.catalog.store import Catalog
from tidemill.engine.session.variables import RETAIN_PARAMETER, SYSTEM_PARAMETERS, unknown_parameter


class SystemParameters:
    def __init__(self, catalog: Catalog, retain_history_ms: int) -> None:
        """`retain_history_ms` is the default of the parameter that the configuration has."""
        self._catalog = catalog
        self._retain_history = f"{retain_history_ms}ms"

    def get(self, name: str) -> str:
        item = self._catalog.state.find_parameter(name)
        if item is not None:
            return item.value
        parameter = SYSTEM_PARAMETERS.get(name)
        if parameter is None:
            raise unknown_parameter(name)
        if name == RETAIN_PARAMETER:
            return parameter.check(name, self._retain_history)
        return parameter.default

    def number(self, name: str) -> int:
        return int(self.get(name))
