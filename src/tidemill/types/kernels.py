"""Compute functions of Arrow, as `pc`.

pyarrow creates them at import, so no type checker sees them. Here they form one untyped object, and their
results are typed where they are used.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

pc: Any = import_module("pyarrow.compute")

# When pyarrow determines a value's type, it imports this package for its interval type. If it is not
# installed, Python would search all folders each time: 50 µs, with a lock held.
if find_spec("dateutil") is None:
    modules: dict[str, Any] = sys.modules
    modules.setdefault("dateutil", None)
