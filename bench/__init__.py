"""Benchmarks, one file per promise. `python -m bench` runs all (or those named) and prints one table."""

import sys
from pathlib import Path

# What they share with the tests: `support`.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
