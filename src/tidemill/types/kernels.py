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

# Whenever pyarrow is to find out a value's type it asks for this package, to know its kind of interval. Where
# it is not installed, Python would look for it in every folder each time: 50 µs, one thread after the other.
if find_spec("dateutil") is None:
    modules: dict[str, Any] = sys.modules
    modules.setdefault("dateutil", None)
