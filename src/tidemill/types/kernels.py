"""Arrow's compute functions, as `pc`.

pyarrow makes them when it is imported, so no type checker sees them; here they are one untyped thing, and
everything made with them is given its type where it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

pc: Any = import_module("pyarrow.compute")
